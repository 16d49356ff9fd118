//! A VM from power-on to its agent's first reply, a call over vsock, and a disk from its plug to its mount.

use std::{fs, process::Command, time::Instant};

use berth::{Container, Guest, Rootfs, Vm, deadline, scratch_dir};
use berth_protocols::{agent::Storage, oci};
use berthctl::vmm::Room;
use serde_json::json;

use crate::{sample::Samples, table::Table};

const BOOTS: usize = 5;
const CALLS: usize = 500;
const PLUGS: usize = 10;

pub fn measure(table: &mut Table) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut boots, mut calls) = (Samples::default(), Samples::default());
    runtime.block_on(async {
        for _ in 0..BOOTS {
            let start = Instant::now();
            let vm = Vm::boot(&[]).await;
            let guest = vm.client().await;
            check(&guest).await;
            boots.push(start.elapsed());
            for _ in 0..CALLS / BOOTS {
                let start = Instant::now();
                check(&guest).await;
                calls.push(start.elapsed());
            }
        }
    });
    runtime.block_on(plugs(table));
    table.figure("VM: power-on to first reply", boots.median(), "ms", None);
    table.figure("VM: null call over vsock, p50", calls.median(), "ms", None);
}

/// From device_add until a container is made on the disk, less what making one takes when there is no disk; beside
/// it, until the kernel's word of the disk has reached a program in the guest, and this one's word the host.
async fn plugs(table: &mut Table) {
    let room = Room { ports: 1, ..Room::default() };
    let mut vm = Vm::boot_roomy(&["maxcpus=1"], &Rootfs::busybox(), room).await;
    let guest = vm.client().await;
    guest.create_sandbox("bench").await.expect("CreateSandbox");
    let dir = scratch_dir("plugs");
    let image = dir.join("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("make an image");
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status();
    assert!(made.expect("mkfs.ext4 (package e2fsprogs)").success());
    let node = json!({ "driver": "file", "node-name": "disk", "filename": image });
    vm.running.control("blockdev-add", &node).await.expect("blockdev-add");
    let watcher = vm.container("watcher", &["uevent", "sh", "-c", TELL]);
    guest.create(&watcher).await.expect("create");
    guest.start("watcher").await.expect("start");

    let (mut plain, mut mounted, mut shown) = (Samples::default(), Samples::default(), Samples::default());
    for round in 0..PLUGS {
        let container = vm.shell(&format!("plain{round}"), "true");
        let start = Instant::now();
        create(guest.clone(), container).await;
        plain.push(start.elapsed());

        let start = Instant::now();
        plug(&mut vm).await;
        guest.read_until("watcher", "", "there").await;
        shown.push(start.elapsed());
        unplug(&mut vm, &guest).await;

        let mut container = vm.shell(&format!("disk{round}"), "true");
        bind(&mut container, VOLUME, "/data");
        container.request.storages.push(Storage {
            driver: "blk".into(),
            source: "10/00".into(),
            fstype: "ext4".into(),
            mount_point: VOLUME.into(),
            ..Default::default()
        });
        let waiting = tokio::spawn(create(guest.clone(), container));
        let start = Instant::now();
        plug(&mut vm).await;
        waiting.await.expect("the call");
        mounted.push(start.elapsed());
        guest.read_until("watcher", "", "there").await;
        guest.remove(&format!("disk{round}")).await.expect("remove");
        unplug(&mut vm, &guest).await;
        guest.remove(&format!("plain{round}")).await.expect("remove");
    }
    let _ = fs::remove_dir_all(&dir);
    let ours = mounted.median() - plain.median();
    table.time("VM: disk plugged to mounted", ours, "to a uevent's reader", shown.median(), None);
}

/// Started for every event.
const TELL: &str = r#"[ "$ACTION $SUBSYSTEM" != "add block" ] || echo there"#;
const VOLUME: &str = "/run/kata-containers/sandbox/volume";

fn bind(container: &mut Container, source: &str, destination: &str) {
    container.spec().Mounts.push(oci::Mount {
        destination: destination.into(),
        source: source.into(),
        type_: "bind".into(),
        options: vec!["rbind".into()],
        ..Default::default()
    });
}

async fn create(guest: Guest, container: Container) {
    guest.create(&container).await.expect("create");
}

async fn plug(vm: &mut Vm) {
    let disk = json!({ "driver": "virtio-blk-pci", "id": "blk0", "bus": "port0", "drive": "disk" });
    vm.running.control("device_add", &disk).await.expect("device_add");
}

async fn unplug(vm: &mut Vm, guest: &Guest) {
    deadline(vm.running.unplug("blk0")).await.expect("unplug");
    check(guest).await;
}

async fn check(guest: &Guest) {
    guest.health.check(ttrpc::context::with_timeout(0), &Default::default()).await.expect("Check");
}
