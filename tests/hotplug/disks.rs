//! Disks, a shared directory and persistent memory.

use std::fs;

use berth::{Guest, Rootfs, Vm, deadline};
use berth_protocols::{
    agent::{AddSwapPathRequest, AddSwapRequest, Device, ResizeVolumeRequest},
    oci,
};
use serde_json::json;
use ttrpc::context::with_timeout;

use crate::host::{
    Host, PATIENCE, VOLUME, add_image, control, guest_says, plug, plug_pmem, plug_share, room, scsi_disk,
    seen_from_within, storage, virtio_disk, with_volume, writes_and_reads,
};

const CYCLES: usize = 100;
/// Nanoseconds; a guest that is emulated on a busy machine takes its time.
const CALL: i64 = 60_000_000_000;
const PMEM_MIB: u64 = 64;

async fn booted() -> (Vm, Guest) {
    let vm = Vm::boot_roomy(&[PATIENCE], &Rootfs::busybox(), room()).await;
    let guest = vm.client().await;
    guest.create_sandbox("berth-vm").await.unwrap();
    (vm, guest)
}

/// Everything a host can plug in, and that what was written to it is there after it was taken away, in the same
/// guest and in another. Memory that persists is not taken away while a guest runs: QEMU cannot ("nvdimm device hot
/// unplug is not supported yet").
#[tokio::test]
async fn disks_come_and_go_while_containers_use_them() {
    let mut host = Host::new();
    let (mut vm, guest) = booted().await;
    a_disk_is_waited_for(&mut vm, &guest, &host).await;
    a_disk_grows_while_it_is_mounted(&mut vm, &guest).await;
    a_container_has_the_disk_itself(&vm, &guest).await;
    deadline(vm.running.unplug("blk0")).await.unwrap();
    let missing = guest.create(&with_volume(&vm, "none", "true", storage("blk", "10/00", "ext4"))).await;
    let text = missing.unwrap_err().to_string();
    assert!(text.contains("the disk at PCI path 10/00 did not appear within 15 s"), "{text}");
    a_hundred_times_over(&mut vm, &guest).await;
    scsi(&mut vm, &guest, &host).await;
    swap(&mut vm, &guest, &host).await;
    a_shared_directory(&mut vm, &guest, &mut host).await;
    plug_pmem(&mut vm, &host.disk("pmem.img", PMEM_MIB), PMEM_MIB).await;
    writes_and_reads(&vm, &guest, "nvdimm", storage("nvdimm", "/dev/pmem0", "ext4")).await;
    drop((guest, vm));

    let (mut vm, guest) = booted().await;
    let image = |name: &str| host.dir.join(name).display().to_string();
    add_image(&mut vm, "disk", &image("blk.img")).await;
    plug(&mut vm, virtio_disk("blk0", 0, "disk")).await;
    add_image(&mut vm, "unit", &image("scsi.img")).await;
    plug(&mut vm, scsi_disk()).await;
    plug_pmem(&mut vm, &image("pmem.img"), PMEM_MIB).await;
    for (file, storage) in [
        ("late", storage("blk", "10/00", "ext4")),
        ("scsi", storage("scsi", "1:0", "ext4")),
        ("nvdimm", storage("nvdimm", "/dev/pmem0", "ext4")),
    ] {
        let again = with_volume(&vm, file, &format!("cat /data/{file}"), storage);
        let output = guest.run(&again).await;
        assert_eq!(output.stdout, format!("{file}\n"), "{output:?}");
    }
}

/// Asked for before it comes: the call waits for it.
async fn a_disk_is_waited_for(vm: &mut Vm, guest: &Guest, host: &Host) {
    let image = host.disk("blk.img", 16);
    let late =
        with_volume(vm, "late", "echo late >/data/late; cat /data/late", storage("blk", "10/00", "ext4"));
    let created = tokio::spawn({
        let guest = guest.clone();
        async move { guest.create(&late).await }
    });
    add_image(vm, "disk", &image).await;
    plug(vm, virtio_disk("blk0", 0, "disk")).await;
    created.await.unwrap().unwrap();
    guest.start("late").await.unwrap();
    assert_eq!(guest.collect("late", "").await.stdout, "late\n");
    guest.remove("late").await.unwrap();
}

async fn a_disk_grows_while_it_is_mounted(vm: &mut Vm, guest: &Guest) {
    let sleeper = with_volume(vm, "grows", "read x; df -m /data | tail -1", storage("blk", "10/00", "ext4"));
    guest.create(&sleeper).await.unwrap();
    guest.start("grows").await.unwrap();
    control(vm, "block_resize", json!({ "node-name": "disk", "size": 64 << 20 })).await;
    let resize =
        ResizeVolumeRequest { volume_guest_path: VOLUME.into(), size: 48 << 20, ..Default::default() };
    // The guest's driver hears of the new size by an interrupt of its own.
    let grown = async { while guest.agent.resize_volume(with_timeout(CALL), &resize).await.is_err() {} };
    deadline(grown).await;
    guest.write("grows", "", b"\n").await.unwrap();
    let shown = guest.collect("grows", "").await.stdout;
    let size: u64 = shown.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((30..48).contains(&size), "{shown}");
    guest.remove("grows").await.unwrap();
}

/// The device itself, under the guest's numbers and not the host's; nothing else is let through.
async fn a_container_has_the_disk_itself(vm: &Vm, guest: &Guest) {
    let magic = "dd if=/dev/given bs=1 skip=1080 count=2 2>/dev/null | od -An -tx1";
    let mut container = vm.shell("raw", magic);
    container.linux().Devices.push(oci::LinuxDevice {
        Path: "/dev/given".into(),
        Type: "b".into(),
        Major: 8,
        Minor: 77,
        FileMode: 0o660,
        ..Default::default()
    });
    container.request.devices.push(Device {
        id: "10/00".into(),
        type_: "blk".into(),
        container_path: "/dev/given".into(),
        ..Default::default()
    });
    assert_eq!(guest.run(&container).await.stdout.trim(), "53 ef", "the magic number of ext4");
}

/// Row R9 of the reliability tests: nothing is left of them, neither a mount nor a descriptor.
async fn a_hundred_times_over(vm: &mut Vm, guest: &Guest) {
    let mounted = "grep -c kata-containers/sandbox /guest/1/mountinfo || true";
    let before = descriptors(vm, guest, "held-before").await;
    assert!(before > 5, "the worker has {before} descriptors");
    for cycle in 0..CYCLES {
        plug(vm, virtio_disk("blk0", 0, "disk")).await;
        let id = format!("cycle{cycle}");
        guest.create(&with_volume(vm, &id, "true", storage("blk", "10/00", "ext4"))).await.unwrap();
        if cycle == 0 {
            assert_eq!(seen_from_within(vm, guest, "mounted", mounted).await, "1");
        }
        guest.remove(&id).await.unwrap();
        deadline(vm.running.unplug("blk0")).await.unwrap();
    }
    assert_eq!(seen_from_within(vm, guest, "left", mounted).await, "0");
    let after = descriptors(vm, guest, "held-after").await;
    // Those of the container that was removed last may be on their way.
    assert!(after < before + CYCLES / 10, "{before} descriptors before, {after} after");
}

/// How many the worker has.
async fn descriptors(vm: &Vm, guest: &Guest, id: &str) -> usize {
    let script = "for p in /guest/[0-9]*; do grep -q '[w]orker' $p/cmdline && ls $p/fd | wc -l; done 2>/dev/null; true";
    let text = seen_from_within(vm, guest, id, script).await;
    text.parse().unwrap_or_else(|_| panic!("the worker's descriptors: {text:?}"))
}

async fn scsi(vm: &mut Vm, guest: &Guest, host: &Host) {
    add_image(vm, "unit", &host.disk("scsi.img", 16)).await;
    for (id, script) in [("scsi", "echo scsi >/data/scsi; cat /data/scsi"), ("scsi-again", "cat /data/scsi")]
    {
        plug(vm, scsi_disk()).await;
        let output = guest.run(&with_volume(vm, id, script, storage("scsi", "1:0", "ext4"))).await;
        assert_eq!(output.stdout, "scsi\n", "{output:?}");
        deadline(vm.running.unplug("scsi1")).await.unwrap();
    }
}

/// By its place and by its path; a disk that nobody prepared is refused.
async fn swap(vm: &mut Vm, guest: &Guest, host: &Host) {
    add_image(vm, "swap", &host.swap("swap.img")).await;
    plug(vm, virtio_disk("swap0", 3, "swap")).await;
    let slots = AddSwapRequest { PCIPath: vec![0x13, 0], ..Default::default() };
    guest.agent.add_swap(with_timeout(CALL), &slots).await.unwrap();
    let swaps = guest_says(vm, guest, "swaps", "cat /proc/swaps").await;
    let used = swaps.lines().nth(1).and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    assert!(swaps.contains("partition"), "{swaps}");
    let by_path = |path: &str| AddSwapPathRequest { path: path.into(), ..Default::default() };
    guest.agent.add_swap_path(with_timeout(CALL), &by_path(used)).await.expect_err("it is in use");

    add_image(vm, "swap2", &host.swap("swap2.img")).await;
    plug(vm, virtio_disk("swap1", 4, "swap2")).await;
    add_image(vm, "plain", &host.disk("plain.img", 16)).await;
    plug(vm, virtio_disk("plain0", 5, "plain")).await;
    // Which of them has which name is the kernel's choice.
    let nodes = "ls /sys/block | grep ^vd";
    let all = async {
        for round in 0.. {
            let found = guest_says(vm, guest, &format!("nodes{round}"), nodes).await;
            let found: Vec<String> = found.lines().map(|name| format!("/dev/{name}")).collect();
            if found.len() == 3 {
                return found;
            }
        }
        unreachable!("the deadline comes first")
    };
    let fresh: Vec<String> = deadline(all).await.into_iter().filter(|node| node != used).collect();
    let mut outcomes = Vec::new();
    for node in &fresh {
        outcomes.push(guest.agent.add_swap_path(with_timeout(CALL), &by_path(node)).await.is_ok());
    }
    outcomes.sort_unstable();
    assert_eq!(outcomes, [false, true], "one is prepared for swap, the other has a file system");
}

async fn a_shared_directory(vm: &mut Vm, guest: &Guest, host: &mut Host) {
    let shared = host.dir.join("shared");
    fs::create_dir(&shared).unwrap();
    for round in ["first", "again"] {
        let socket = host.share(&shared, round);
        plug_share(vm, guest, &socket, round).await;
        writes_and_reads(vm, guest, round, storage("virtio-fs", "kataShared", "virtiofs")).await;
        assert_eq!(fs::read_to_string(shared.join(round)).unwrap(), format!("{round}\n"));
        deadline(vm.running.unplug("fs0")).await.unwrap();
        host.end_share();
    }
    assert!(shared.join("first").exists());
}
