//! Secrets, encrypted storage and images that the confidential data hub has for containers.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use berth_protocols::{
    agent::{CreateContainerRequest, Storage},
    oci,
};
use ttrpc::Code;

use crate::{
    allowing,
    host::{self, Host, Out, sh, soon},
    hub::{Hub, plaintext},
};

impl Host {
    fn socket(&self) -> PathBuf {
        self.dir.join("run/cdh.sock")
    }

    async fn hub(&self) -> Hub {
        Hub::start(&self.socket(), self.role("berth-agent").expect("an init")).await
    }

    fn state(&self) -> PathBuf {
        self.dir.join("agent.sock.state")
    }
}

/// Files below `dir` in which `text` is.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files_with(&entry.path(), text));
        } else if kind.is_file() && String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).contains(text) {
            found.push(entry.path());
        }
    }
    found
}

fn sealed(entries: &[&str]) -> impl FnOnce(&mut oci::Spec) {
    let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
    move |spec| spec.Process.mut_or_insert_default().Env.extend(entries)
}

fn refusal<T: std::fmt::Debug>(result: ttrpc::Result<T>) -> (Code, String) {
    match result {
        Err(ttrpc::Error::RpcStatus(status)) => (status.code(), status.message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn secrets_reach_the_program_and_nothing_else() {
    let host = allowing("", "").await;
    let hub = host.hub().await;
    let volume = host.dir.join("volume");
    fs::create_dir_all(volume.join("..data")).unwrap();
    fs::write(volume.join("..data/token"), "sealed.file").unwrap();
    fs::write(volume.join("..data/plain"), "not sealed").unwrap();
    for name in ["token", "plain"] {
        symlink(format!("..data/{name}"), volume.join(name)).unwrap();
    }
    let script = "echo $A $B $C; cat /sealed/v/token; echo; cat /sealed/v/plain; sleep 60";
    let change = |spec: &mut oci::Spec| {
        sealed(&["A=open", "B=sealed.env", "C=x sealed."])(spec);
        spec.Mounts.push(oci::Mount {
            destination: "/sealed/v".into(),
            source: volume.display().to_string(),
            type_: "bind".into(),
            options: vec!["bind".into(), "ro".into()],
            ..Default::default()
        });
    };
    host.create_with("c1", sh(&["sh", "-c", script]), change).await.unwrap();
    host.start_container("c1").await.unwrap();
    let expected = format!("open {} x sealed.\n{}\nnot sealed", plaintext("env"), plaintext("file"));
    let mut output = String::new();
    while output.len() < expected.len() {
        output += &String::from_utf8(host.read("c1", "", Out::Stdout).await.unwrap()).unwrap();
    }
    assert_eq!(output, expected);

    // The search finds the one file that must have a secret in it, and so would find any other.
    let kept = host.state().join("containers/c1/secrets/0");
    assert_eq!(files_with(&host.dir, &plaintext("")), [kept]);
    let config = host.state().join("containers/c1/config.json");
    assert_eq!(files_with(&host.dir, "sealed.env"), [config]);
    assert!(host.log().contains("container created"), "{}", host.log());
    host.remove("c1").await.unwrap();
    assert!(files_with(&host.dir, &plaintext("")).is_empty());
    hub.stop().await;
}

#[tokio::test]
async fn what_the_hub_does_not_unseal_fails_the_call_and_says_which() {
    let host = allowing("cdh_api_timeout = 1\n", "").await;
    let hub = host.hub().await;
    let outcome = async |id: &str, entry: &str| {
        refusal(host.create_with(id, sh(&["sh", "-c", "exit 0"]), sealed(&[entry])).await)
    };
    for (entry, code, text) in [
        ("A=sealed.unknown", Code::INTERNAL, "refuses UnsealSecret: code 13: no such key"),
        ("A=sealed.silence", Code::INTERNAL, "has not answered UnsealSecret in 1 s"),
        ("A=sealed.binary", Code::INVALID_ARGUMENT, "what was sealed there is not UTF-8"),
    ] {
        let (got, message) = outcome("c1", entry).await;
        assert_eq!(got, code, "{message}");
        assert!(message.starts_with("cannot unseal the environment variable A: "), "{message}");
        assert!(message.contains(text), "{message}");
    }
    // Nothing is left of the id, and a hub that is silent keeps nobody else waiting.
    let silent = outcome("silent", "A=sealed.silence");
    let ran = async {
        host.run("c1", sh(&["sh", "-c", "exit 3"])).await.unwrap();
        host.wait("c1", "").await.unwrap()
    };
    assert_eq!(tokio::join!(ran, silent).0, 3);
    hub.stop().await;
    fs::remove_file(host.socket()).unwrap_or_default();
    drop(std::os::unix::net::UnixListener::bind(host.socket()).unwrap());
    let (code, message) = outcome("c2", "A=sealed.x").await;
    assert_eq!(code, Code::UNAVAILABLE, "{message}");
    assert!(
        message.contains("run/confidential-containers/cdh.sock is not there: Connection refused"),
        "{message}"
    );
}

#[tokio::test]
async fn a_hub_that_comes_is_waited_for_and_one_that_is_not_to_come_is_not() {
    let host = allowing("launch_process_timeout = 60\n", "").await;
    let hub = async {
        // The call is on its way, or will find the hub there: both must do.
        tokio::task::yield_now().await;
        host.hub().await
    };
    let created = host.create_with("c1", sh(&["sh", "-c", "echo $A"]), sealed(&["A=sealed.late"]));
    let (created, hub) = tokio::join!(created, hub);
    created.unwrap();
    host.start_container("c1").await.unwrap();
    assert_eq!(host.read_all("c1", "", Out::Stdout).await.unwrap(), plaintext("late") + "\n");
    hub.stop().await;

    let impatient = allowing("launch_process_timeout = 1\n", "").await;
    let created = impatient.create_with("c1", sh(&["sh", "-c", "exit 0"]), sealed(&["A=sealed.x"])).await;
    let (code, message) = refusal(created);
    assert_eq!(code, Code::UNAVAILABLE, "{message}");

    let without = allowing("guest_components_procs = 'attestation-agent'\n", "").await;
    without.create_with("c1", sh(&["sh", "-c", "echo $A"]), sealed(&["A=sealed.x"])).await.unwrap();
    without.start_container("c1").await.unwrap();
    assert_eq!(without.read_all("c1", "", Out::Stdout).await.unwrap(), "sealed.x\n");
}

#[tokio::test]
async fn an_image_that_the_hub_pulled_is_the_root_and_goes_with_the_container() {
    let shared = "mkdir -p /run/kata-containers; mount -t tmpfs shared /run/kata-containers";
    let host = allowing("", shared).await;
    let hub = host.hub().await;
    let pulling = |id: &str, image: &str| {
        let rootfs = format!("/run/kata-containers/{id}/rootfs");
        let storage = Storage {
            driver: "image_guest_pull".into(),
            source: image.into(),
            mount_point: rootfs.clone(),
            driver_options: vec![r#"image_guest_pull={"metadata":{}}"#.into()],
            ..Default::default()
        };
        let mut request = CreateContainerRequest { container_id: id.into(), ..Default::default() };
        let spec = request.OCI.mut_or_insert_default();
        *spec = host::spec(sh(&["sh", "-c", "cat /etc/image"]), &host.cgroup_of(id));
        spec.Root.mut_or_insert_default().Path = rootfs;
        request.storages.push(storage);
        request
    };
    let image = "registry.example/box:1";
    host.client.create_container(soon(), &pulling("c1", image)).await.unwrap();
    host.start_container("c1").await.unwrap();
    assert_eq!(host.read_all("c1", "", Out::Stdout).await.unwrap(), "pulled\n");
    host.remove("c1").await.unwrap();
    let mounts = format!("/proc/{}/mountinfo", host.role("berth-agent").unwrap());
    let left = fs::read_to_string(mounts).unwrap();
    assert!(!left.contains("/c1/") && !host.state().join("containers/c1").exists(), "{left}");

    let refused =
        refusal(host.client.create_container(soon(), &pulling("c2", "registry.example/box:none")).await);
    assert!(refused.1.contains("cannot pull the image registry.example/box:none"), "{}", refused.1);
    assert!(refused.1.contains("manifest unknown"), "{}", refused.1);
    assert_eq!(hub.asked(), [image, "registry.example/box:none"]);
    hub.stop().await;
}

#[tokio::test]
async fn a_disk_for_images_is_encrypted_by_the_hub() {
    for (toml, integrity) in [("", "true"), ("secure_storage_integrity = false\n", "false")] {
        let host = allowing(toml, "").await;
        let hub = host.hub().await;
        let change = |spec: &mut oci::Spec| {
            spec.Linux.mut_or_insert_default().Devices.push(oci::LinuxDevice {
                Path: "/dev/trusted_store".into(),
                Type: "b".into(),
                Major: 254,
                Minor: 16,
                FileMode: 0o600,
                ..Default::default()
            });
        };
        host.create_with("c1", sh(&["sh", "-c", "exit 0"]), change).await.unwrap();
        let options = format!(
            "dataIntegrity={integrity},deviceId=254:16,encryptionType=luks2,filesystemType=ext4,\
             sourceType=empty,targetType=fileSystem"
        );
        assert_eq!(hub.asked(), [format!("block-device {options} /run/kata-containers/image/")]);
        hub.stop().await;
    }
}
