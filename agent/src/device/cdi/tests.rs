use std::{fs, os::unix::fs::MetadataExt, path::PathBuf, time::Duration};

use oci_spec::runtime::Spec;
use serde_json::{Value, json};

use super::Registry;

/// Two directories of descriptions, gone with the test.
struct Place {
    root: PathBuf,
    registry: Registry,
}

impl Place {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("berth-cdi-{name}-{}", std::process::id()));
        let _old = fs::remove_dir_all(&root);
        let directories = vec![root.join("etc/cdi"), root.join("run/cdi")];
        let registry = Registry { directories, patience: Duration::from_secs(20), by_environment: true };
        Self { root, registry }
    }

    fn write(&self, path: &str, document: &Value) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, document.to_string()).unwrap();
    }

    async fn refusal(&self, spec: &mut Spec) -> String {
        let before = spec.clone();
        let text = self.registry.inject(spec).await.unwrap_err().to_string();
        assert_eq!(*spec, before, "{text}");
        text
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.root);
    }
}

fn spec(names: &str) -> Spec {
    let spec = json!({
        "ociVersion": "1.2.0",
        "annotations": { "cdi.k8s.io/test": names },
        "process": { "cwd": "/", "user": { "uid": 1000, "gid": 0 }, "env": ["PATH=/bin", "WHICH=host"] },
        "mounts": [
            { "destination": "/proc", "type": "proc" },
            { "destination": "/opt/driver/lib", "source": "/lib", "options": ["bind"] },
            { "destination": "/opt/driver", "source": "/old", "options": ["bind"] },
        ],
        "linux": { "devices": [{ "path": "/dev/gpu0", "type": "c", "major": 9, "minor": 9 }] },
    });
    serde_json::from_value(spec).unwrap()
}

fn gpu(which: &str) -> Value {
    let node = |path: &str| json!({ "path": path, "hostPath": "/dev/null" });
    json!({
        "cdiVersion": "0.6.0",
        "kind": "v.com/gpu",
        "devices": [
            { "name": "0", "containerEdits": { "env": [format!("WHICH={which}")], "deviceNodes": [node("/dev/gpu0")] } },
            { "name": "1", "containerEdits": { "env": ["ONE=1"], "deviceNodes": [
                { "path": "/dev/gpu1", "type": "b", "major": 7, "minor": 5, "permissions": "r", "uid": 3, "gid": 4 } ] } },
        ],
        "containerEdits": {
            "env": ["EVERY=yes"],
            "mounts": [{ "hostPath": "/opt/guest", "containerPath": "/opt/driver", "options": ["ro", "nosuid"] }],
            "hooks": [{ "hookName": "createContainer", "path": "/sbin/ldconfig", "args": ["ldconfig"], "timeout": 5 }],
            "additionalGids": [0, 44],
        },
    })
}

#[tokio::test]
async fn a_device_changes_all_that_its_description_says() {
    let place = Place::new("all");
    place.write("etc/cdi/gpu.json", &gpu("guest"));
    let mut spec = spec("v.com/gpu=0,v.com/gpu=1");
    place.registry.inject(&mut spec).await.unwrap();

    let process = spec.process().as_ref().unwrap();
    assert_eq!(process.env().as_ref().unwrap(), &["PATH=/bin", "WHICH=guest", "EVERY=yes", "ONE=1"]);
    assert_eq!(process.user().additional_gids().as_ref().unwrap(), &[44]);
    let spec = serde_json::to_value(&spec).unwrap();
    let null = fs::metadata("/dev/null").unwrap().rdev();
    let (major, minor) = (nix::sys::stat::major(null), nix::sys::stat::minor(null));
    assert_eq!(
        spec["linux"]["devices"],
        json!([
            { "path": "/dev/gpu0", "type": "c", "major": major, "minor": minor, "uid": 1000 },
            { "path": "/dev/gpu1", "type": "b", "major": 7, "minor": 5, "uid": 3, "gid": 4 },
        ])
    );
    let rules = spec["linux"]["resources"]["devices"].as_array().unwrap();
    assert_eq!(
        rules[0],
        json!({ "allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm" })
    );
    assert_eq!(rules[1], json!({ "allow": true, "type": "b", "major": 7, "minor": 5, "access": "r" }));
    let mounts: Vec<&Value> = spec["mounts"].as_array().unwrap().iter().collect();
    let places: Vec<&str> = mounts.iter().map(|mount| mount["destination"].as_str().unwrap()).collect();
    assert_eq!(places, ["/proc", "/opt/driver", "/opt/driver/lib"]);
    assert_eq!(mounts[1]["source"], "/opt/guest");
    assert_eq!(mounts[1]["options"], json!(["ro", "nosuid", "rbind"]));
    let hooks = &spec["hooks"]["createContainer"];
    assert_eq!(hooks, &json!([{ "path": "/sbin/ldconfig", "args": ["ldconfig"], "timeout": 5 }]));
}

#[tokio::test]
async fn the_later_directory_counts_and_two_files_of_one_do_not() {
    let place = Place::new("rank");
    place.write("etc/cdi/gpu.json", &gpu("etc"));
    place.write("run/cdi/gpu.json", &gpu("run"));
    let mut one = spec("v.com/gpu=0");
    place.registry.inject(&mut one).await.unwrap();
    assert!(one.process().as_ref().unwrap().env().as_ref().unwrap().contains(&"WHICH=run".to_owned()));

    place.write("run/cdi/other.json", &gpu("other"));
    let text = place.refusal(&mut spec("v.com/gpu=0")).await;
    assert!(text.contains("v.com/gpu=0 is described twice"), "{text}");
}

/// As a vendor's tool writes it.
const YAML: &str = r#"---
cdiVersion: 1.1.0
kind: v.com/nic
devices:
- name: "0"
  containerEdits:
    netDevices:
    - hostInterfaceName: eth1
      name: fast0
    intelRdt:
      closID: guaranteed
      schemata:
      - "L3:0=ff"
      enableMonitoring: true
    env: [NIC=0]
"#;

#[tokio::test]
async fn a_description_in_yaml_means_the_same_and_can_give_interfaces_and_caches() {
    let place = Place::new("yaml");
    fs::create_dir_all(place.root.join("run/cdi")).unwrap();
    fs::write(place.root.join("run/cdi/nic.yaml"), YAML).unwrap();
    let mut spec = spec("v.com/nic=0");
    place.registry.inject(&mut spec).await.unwrap();
    let spec = serde_json::to_value(&spec).unwrap();
    assert_eq!(spec["linux"]["netDevices"], json!({ "eth1": { "name": "fast0" } }));
    let caches = json!({ "closID": "guaranteed", "schemata": ["L3:0=ff"], "enableMonitoring": true });
    assert_eq!(spec["linux"]["intelRdt"], caches);
    assert!(spec["process"]["env"].as_array().unwrap().contains(&json!("NIC=0")));

    // One in JSON of the same directory is no better than one in YAML.
    let device = json!({ "name": "0", "containerEdits": {} });
    place.write("run/cdi/nic.json", &json!({ "kind": "v.com/nic", "devices": [device] }));
    let mut twice = self::spec("v.com/nic=0");
    assert!(place.refusal(&mut twice).await.contains("described twice"));
}

#[tokio::test]
async fn every_device_of_a_kind_can_be_asked_for() {
    let place = Place::new("every");
    place.write("etc/cdi/gpu.json", &gpu("guest"));
    let mut spec = spec("v.com/gpu=1");
    spec.set_annotations(None);
    let process = spec.process_mut().as_mut().unwrap();
    process.set_env(Some(vec!["VISIBLE_CDI_DEVICES=v.com/gpu=all".to_owned()]));
    let without = Registry { by_environment: false, ..place.registry.clone() };
    let before = spec.clone();
    without.inject(&mut spec).await.unwrap();
    assert_eq!(spec, before);
    place.registry.inject(&mut spec).await.unwrap();
    let environment = spec.process().as_ref().unwrap().env().clone().unwrap();
    assert_eq!(environment[1..], ["EVERY=yes", "WHICH=guest", "ONE=1"]);
}

#[tokio::test]
async fn a_description_is_waited_for_wherever_it_is_missing() {
    let place = Place::new("late");
    fs::create_dir_all(&place.root).unwrap();
    let mut spec = spec("v.com/gpu=0");
    let injected = place.registry.inject(&mut spec);
    let written = async {
        // Each step wakes the search, which finds a little more of the way.
        for (path, text) in
            [("run/other", ""), ("run/cdi/gpu.json", "{\"cdiVersion\":"), ("run/cdi/fresh", "")]
        {
            tokio::task::yield_now().await;
            fs::create_dir_all(place.root.join(path).parent().unwrap()).unwrap();
            fs::write(place.root.join(path), text).unwrap();
        }
        fs::write(place.root.join("run/cdi/fresh"), gpu("guest").to_string()).unwrap();
        fs::rename(place.root.join("run/cdi/fresh"), place.root.join("run/cdi/gpu.json")).unwrap();
    };
    let (outcome, ()) = tokio::join!(injected, written);
    outcome.unwrap();
}

#[tokio::test]
async fn a_deadline_tells_what_is_missing_and_what_could_not_be_read() {
    let mut place = Place::new("deadline");
    place.registry.patience = Duration::from_millis(50);
    place.write("etc/cdi/gpu.json", &gpu("guest"));
    fs::write(place.root.join("etc/cdi/half.json"), "{").unwrap();
    fs::write(place.root.join("etc/cdi/driver.yaml"), "kind: &v v.com/net").unwrap();
    let text = place.refusal(&mut spec("v.com/gpu=0,v.com/net=a")).await;
    for part in [
        "the description of v.com/gpu=0, v.com/net=a",
        "describes v.com/net=a",
        "half.json: EOF",
        "driver.yaml: line 1",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn what_a_container_cannot_be_given_is_refused() {
    let place = Place::new("refused");
    for (edits, expected) in [
        (
            json!({ "netDevices": [
                { "hostInterfaceName": "eth1", "name": "a" }, { "hostInterfaceName": "eth2", "name": "a" } ] }),
            "no name for a network device",
        ),
        (
            json!({ "hooks": [{ "hookName": "later", "path": "/x" }] }),
            "\"later\" of a CDI description is no time",
        ),
        (json!({ "deviceNodes": [{ "path": "/etc/passwd" }] }), "is no device in this guest"),
        (json!({ "deviceNodes": [{ "path": "/dev/null", "type": "b" }] }), "of another type"),
        (json!({ "deviceNodes": [{ "path": "/dev/berth-none" }] }), "cannot look at /dev/berth-none"),
    ] {
        let device = json!({ "name": "0", "containerEdits": edits });
        place.write(
            "etc/cdi/x.json",
            &json!({ "cdiVersion": "0.6.0", "kind": "v.com/x", "devices": [device] }),
        );
        let text = place.refusal(&mut spec("v.com/x=0")).await;
        assert!(text.contains(expected), "{expected:?} is not in {text:?}");
    }
}
