//! What is wrong with a request is said before anything exists.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use rustjail::{
    compile::{self, CompileError, ContainerRequest, Stdio},
    launch::Launch,
    sync,
};
use serde_json::{Value, json};
use support::Bundle;

fn compile_in(bundle: &Bundle, directory: &Path) -> Result<Launch, CompileError> {
    compile_confined(bundle, directory, &[])
}

fn compile_confined(bundle: &Bundle, directory: &Path, confined: &[PathBuf]) -> Result<Launch, CompileError> {
    let spec = serde_json::from_value(bundle.spec.clone()).unwrap();
    let null = || File::open("/dev/null").unwrap().into();
    let stdio = Stdio::Streams { stdin: null(), stdout: null(), stderr: null() };
    let (_maker, child) = sync::pair().unwrap();
    let (join, placement) = (Vec::new(), None);
    compile::container(ContainerRequest {
        id: "test",
        resctrl: None,
        spec: &spec,
        bundle: directory,
        confined,
        stdio,
        join,
        placement,
        sync: child,
    })
}

fn error(change: impl FnOnce(&mut Bundle)) -> String {
    let mut bundle = Bundle::new("true");
    change(&mut bundle);
    compile_in(&bundle, &bundle.path).map(drop).unwrap_err().to_string()
}

fn error_with(pointer: &str, value: Value) -> String {
    error(|bundle| {
        bundle.set(pointer, value);
    })
}

fn without(bundle: &mut Bundle, name: &str) {
    bundle.spec.as_object_mut().unwrap().remove(name);
}

#[test]
fn a_plan_survives_its_bytes() {
    let bundle = Bundle::new("true");
    let launch = compile_in(&bundle, &bundle.path).unwrap();
    let bytes = launch.plan.to_bytes().unwrap();
    assert_eq!(rustjail::plan::Plan::from_bytes(&bytes).unwrap(), launch.plan);
    for length in 0..bytes.len() {
        assert!(rustjail::plan::Plan::from_bytes(&bytes[..length]).is_err(), "{length}");
    }
}

#[test]
fn what_is_required_is_named() {
    assert_eq!(error(|b| without(b, "process")), "the OCI configuration has no process");
    assert_eq!(error(|b| without(b, "root")), "the OCI configuration has no root");
    assert_eq!(error_with("/process/args", json!([])), "the OCI configuration has no process.args");
    let user = error_with("/linux/namespaces/-", json!({"type": "user"}));
    assert!(user.contains("linux.uidMappings, which a user namespace needs"));
}

#[test]
fn a_root_that_cannot_be_used_is_named() {
    let missing = error_with("/root/path", json!("nowhere"));
    assert!(missing.contains("/nowhere as the root file system: No such file"), "{missing}");
    let file = error(|b| {
        fs::write(b.path.join("file"), "").unwrap();
        b.set("/root/path", json!("file"));
    });
    assert!(file.contains("/file as the root file system: Not a directory"), "{file}");
    let bundle = Bundle::new("true");
    let relative = compile_in(&bundle, Path::new("bundle")).unwrap_err().to_string();
    assert!(relative.contains("\"bundle/rootfs\" is relative"), "{relative}");
}

#[test]
fn links_in_a_directory_of_others_stay_in_it() {
    let mut bundle = Bundle::new("true");
    let volume = bundle.path.join("volume");
    fs::create_dir_all(volume.join("data/deep")).unwrap();
    for (name, target) in
        [("in", "data"), ("out", "../rootfs"), ("away", "/proc"), ("deep", "data/deep/../..")]
    {
        symlink(target, volume.join(name)).unwrap();
    }
    bundle.set("/mounts/-", json!({"destination": "/data", "source": "", "options": ["bind"]}));
    let last = bundle.spec["mounts"].as_array().unwrap().len() - 1;
    let mut mount = |source: &str, confined: &[PathBuf]| {
        bundle.set(&format!("/mounts/{last}/source"), json!(source));
        compile_confined(&bundle, &bundle.path, confined).map(drop).map_err(|error| error.to_string())
    };
    let confined = [volume.clone()];
    for source in ["volume", "volume/data", "volume/in", "volume/in/deep", "volume/deep/data", "rootfs"] {
        mount(source, &confined).unwrap_or_else(|error| panic!("{source}: {error}"));
    }
    for source in ["volume/out", "volume/out/bin", "volume/away", "volume/in/../..", "volume/deep/../rootfs"]
    {
        let error = mount(source, &confined).unwrap_err();
        assert!(error.contains(&format!("leads out of {}", volume.display())), "{source}: {error}");
        mount(source, &[]).unwrap_or_else(|error| panic!("{source}: {error}"));
    }
    // The innermost counts: what may be followed in the volume may not in a volume within it.
    let error = mount("volume/data/deep/../../in", &[volume.clone(), volume.join("data")]).unwrap_err();
    assert!(error.contains("volume/data:"), "{error}");
    let error = mount("volume/in/deep", &[volume.join("in")]).unwrap_err();
    assert!(error.contains("volume/in:"), "a link cannot be the directory itself: {error}");
}

#[test]
fn a_setting_needs_its_namespace() {
    let keep = |kinds: &[&str]| kinds.iter().map(|kind| json!({"type": kind})).collect::<Value>();
    let uts = error_with("/linux/namespaces", keep(&["mount", "pid"]));
    assert!(uts.starts_with("hostname needs the container to have a uts namespace"), "{uts}");
    let mount = error_with("/linux/namespaces", keep(&["uts", "pid"]));
    assert!(mount.starts_with("root needs the container to have a mount namespace"), "{mount}");
    let ipc = error(|b| {
        b.set("/linux/namespaces", keep(&["mount", "uts"]));
        b.set("/linux/sysctl", json!({"kernel.sem": "1 2 3 4"}));
    });
    assert!(ipc.starts_with("linux.sysctl \"kernel.sem\" needs the container to have an ipc"), "{ipc}");
    let map = json!([{"containerID": 0, "hostID": 0, "size": 1}]);
    let user = error_with("/linux/uidMappings", map);
    assert!(user.contains("have a user namespace"), "{user}");
    let twice = error_with("/linux/namespaces/-", json!({"type": "ipc"}));
    assert!(twice.contains("\"ipc\" is listed twice"), "{twice}");
    let joined = error_with("/linux/namespaces", json!([{"type": "mount", "path": "/proc/self/ns/mnt"}]));
    assert!(joined.starts_with("root needs the container to have a mount namespace"), "{joined}");
}

#[test]
fn mounts_that_make_no_sense_are_refused() {
    let dir = |extra: Value| {
        let mut mount = json!({"destination": "/data", "source": "/tmp", "options": ["bind"]});
        mount.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        error_with("/mounts/-", mount)
    };
    for (mount, text) in [
        (json!({"source": "nowhere"}), "/nowhere: No such file"),
        (json!({"source": ""}), "mount /data: has no source to bind"),
        (json!({"options": ["bind", "size=1"]}), "\"size\" is for a new file system"),
        (json!({"options": ["idmap"]}), "has mapped ids, which only a bind mount can have"),
        (json!({"options": ["ro"]}), "mount /data: has neither a type nor the option bind"),
        (json!({"destination": "/"}), "mount /: is the root file system"),
        (json!({"destination": "/a/../b"}), "\"/a/../b\" has \"..\" in it"),
        (json!({"destination": "/proc"}), "mount /proc: has to be a procfs"),
        (
            json!({"destination": "/proc", "options": [], "type": "tmpfs"}),
            "mount /proc: has to be of the type proc",
        ),
        (json!({"uidMappings": [{"containerID": 0, "hostID": 0, "size": 1}]}), "it takes both"),
    ] {
        let error = dir(mount.clone());
        assert!(error.contains(text), "{mount}: {error}");
    }
    let word = error_with("/linux/rootfsPropagation", json!("sharde"));
    assert!(word.starts_with("linux.rootfsPropagation \"sharde\" is not shared"), "{word}");
}

#[test]
fn more_descriptors_than_a_message_carries_are_refused() {
    let many = error(|b| {
        for number in 0..252 {
            b.set(
                "/mounts/-",
                json!({"destination": format!("/d{number}"), "source": "/tmp", "options": ["bind"]}),
            );
        }
    });
    assert!(many.starts_with("the container needs 257 descriptors"), "{many}");
}

#[test]
fn a_namespace_is_looked_at_before_it_is_opened() {
    // Opening a FIFO waits for whoever writes to it.
    let refusal = error(|bundle| {
        let fifo = bundle.path.join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        bundle.set("/linux/namespaces/-", json!({"type": "user", "path": fifo}));
    });
    assert!(refusal.contains("user"), "{refusal}");
    let refusal = error_with("/linux/namespaces/-", json!({"type": "user", "path": "/proc/self/ns/uts"}));
    assert!(refusal.contains("user"), "{refusal}");
}

/// The fuzzer changes these a little at a time: what is not understood to begin with leads it nowhere.
#[test]
fn the_seeds_of_the_fuzz_target_are_configurations() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/config");
    let mut count = 0;
    for seed in fs::read_dir(seeds).unwrap() {
        let path = seed.unwrap().path();
        let text = fs::read(&path).unwrap();
        serde_json::from_slice::<oci_spec::runtime::Spec>(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        count += 1;
    }
    assert!(count > 5);
}
