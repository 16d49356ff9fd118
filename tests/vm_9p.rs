//! A directory of the host over 9p, for which the guest needs a kernel with more drivers than that of the other VMs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{fs, path::PathBuf};

use berth::{Container, Guest, Rootfs, Vm, deadline, scratch_dir};
use berth_protocols::{agent::Storage, oci};
use berthctl::vmm::Room;
use serde_json::json;

const TAG: &str = "kataShared";

/// A directory of the host, removed on drop.
struct Shared(PathBuf);

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn storage(name: &str, options: &[&str]) -> Storage {
    Storage {
        driver: "9p".into(),
        source: TAG.into(),
        fstype: "9p".into(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        mount_point: format!("/run/kata-containers/sandbox/{name}"),
        ..Default::default()
    }
}

/// A container that has `storage` as /data.
fn with(vm: &Vm, id: &str, script: &str, storage: Storage) -> Container {
    let mut container = vm.shell(id, script);
    container.spec().Mounts.push(oci::Mount {
        destination: "/data".into(),
        source: storage.mount_point.clone(),
        type_: "bind".into(),
        options: vec!["rbind".into()],
        ..Default::default()
    });
    container.request.storages.push(storage);
    container
}

/// Plugs the share, and waits until the guest's driver has it: 9p, unlike a disk, has no node to wait for.
async fn plug(vm: &mut Vm, guest: &Guest, round: usize) {
    let device =
        json!({ "driver": "virtio-9p-pci", "id": "p9", "bus": "port0", "fsdev": "share", "mount_tag": TAG });
    deadline(vm.running.control("device_add", &device)).await.unwrap();
    let bound = "ls -d /sys/bus/virtio/drivers/9pnet_virtio/virtio* 2>/dev/null || true";
    let look = vm.shell(&format!("look-{round}"), bound);
    deadline(async { while guest.run(&look).await.stdout.is_empty() {} }).await;
}

#[tokio::test]
async fn containers_read_and_write_a_directory_over_9p() {
    let shared = Shared(scratch_dir("9p"));
    fs::write(shared.0.join("greeting"), "of the host\n").unwrap();
    let share = format!("local,id=share,path={},security_model=none", shared.0.display());
    let room = Room { ports: 1, arguments: vec!["-fsdev".into(), share], ..Room::default() };
    let mut vm = Vm::boot_generic(&[], &Rootfs::busybox(), room).await;
    let guest = vm.client().await;
    guest.create_sandbox("berth-9p").await.unwrap();
    plug(&mut vm, &guest, 1).await;

    // While cat waits for the host, its pipe's lock in hand, the pipe looks as if there were something in it.
    let script = "i=0; while [ $((i += 1)) -le 200 ]; do cat /data/greeting || exit; done";
    let output = guest.run(&with(&vm, "cats", script, storage("volume", &[]))).await;
    assert_eq!((output.status, output.stdout), (0, "of the host\n".repeat(200)));

    let script = "cat /data/greeting; mkdir /data/made; echo of the guest >/data/made/file; \
                  mv /data/greeting /data/moved; grep ' /data ' /proc/mounts | cut -d' ' -f3";
    let options = ["version=9p2000.L", "msize=65536", "nodev"];
    let output = guest.run(&with(&vm, "writes", script, storage("volume", &options))).await;
    assert_eq!((output.status, output.stdout.as_str()), (0, "of the host\n9p\n"), "{output:?}");
    assert_eq!(fs::read_to_string(shared.0.join("made/file")).unwrap(), "of the guest\n");
    assert!(shared.0.join("moved").exists() && !shared.0.join("greeting").exists());

    deadline(vm.running.unplug("p9")).await.unwrap();
    let error =
        guest.create(&with(&vm, "gone", "true", storage("volume", &[]))).await.unwrap_err().to_string();
    assert!(error.contains("cannot mount kataShared"), "{error}");
    plug(&mut vm, &guest, 2).await;

    // What the host wrote meanwhile is seen, and a volume that is read-only is.
    fs::write(shared.0.join("later"), "later\n").unwrap();
    let script = "cat /data/later; echo x >/data/refused";
    let output = guest.run(&with(&vm, "reads", script, storage("volume", &["ro"]))).await;
    assert_eq!(output.stdout, "later\n", "{output:?}");
    assert!(output.status != 0 && output.stderr.contains("Read-only"), "{output:?}");
    assert!(!shared.0.join("refused").exists());

    let mut unknown = storage("none", &[]);
    unknown.source = "no-such-tag".into();
    let error = guest.create(&with(&vm, "none", "true", unknown)).await.unwrap_err().to_string();
    assert!(error.contains("cannot mount no-such-tag") && error.contains("trans=virtio"), "{error}");
    let left = "grep -c kata-containers/sandbox /proc/1/mountinfo || true";
    let output = guest.run(&vm.shell("left", left)).await;
    assert_eq!(output.stdout, "0\n", "{output:?}");
}
