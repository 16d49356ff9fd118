//! What disappears under the containers that use it, and what containers must never have.

use std::fs;

use berth::{Container, Guest, Rootfs, Vm, deadline};
use berthctl::vmm::image;
use ttrpc::context::with_timeout;

use crate::host::{
    Host, PATIENCE, add_image, guest_says, plug, plug_share, room, storage, virtio_disk, with_volume,
};

const ECHO: &str = "while read line; do echo heard $line; done";
const CAPABILITIES: [&str; 6] = [
    "CAP_SYS_ADMIN",
    "CAP_SYS_RAWIO",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_SYS_PTRACE",
    "CAP_NET_ADMIN",
];

/// Every kind of call on and around a container that has nothing to do with what disappeared.
async fn others_go_on(vm: &Vm, guest: &Guest, round: &str) {
    guest.write("bystander", "", format!("{round}\n").as_bytes()).await.unwrap();
    guest.read_until("bystander", "", &format!("heard {round}\n")).await;
    guest.stats("bystander").await.unwrap();
    let details = guest.agent.get_guest_details(with_timeout(60_000_000_000), &Default::default()).await;
    details.unwrap();
    assert_eq!(guest_says(vm, guest, &format!("new-{round}"), "echo new").await, "new");
}

/// Row R15 of the reliability tests: a disk, and a host's directory, that disappear while containers use them.
/// Rows S4 and A1, A3: the guest's own devices, and the files it was booted from.
#[tokio::test]
async fn what_disappears_is_missed_by_its_container_alone() {
    let booted = ["initrd.cpio", "vmlinux"].map(|name| image::locate(None, name, name).unwrap());
    let before = booted.clone().map(|path| fs::read(path).unwrap());
    let mut host = Host::new();
    let mut vm = Vm::boot_roomy(&[PATIENCE], &Rootfs::busybox(), room()).await;
    let guest = vm.client().await;
    guest.create_sandbox("berth-vm").await.unwrap();
    guest.create(&vm.shell("bystander", ECHO)).await.unwrap();
    guest.start("bystander").await.unwrap();
    a_disk(&mut vm, &guest, &host).await;
    no_device_that_was_not_granted(&mut vm, &guest).await;
    everything_is_overwritten(&vm, &guest).await;
    a_shared_directory(&mut vm, &guest, &mut host).await;
    drop((guest, vm));
    assert!(booted.map(|path| fs::read(path).unwrap()) == before, "the image was written to");
}

async fn a_disk(vm: &mut Vm, guest: &Guest, host: &Host) {
    add_image(vm, "disk", &host.disk("blk.img", 16)).await;
    plug(vm, virtio_disk("blk0", 0, "disk")).await;
    let script = "echo kept >/data/kept; sync; echo written; read x; \
        while dd if=/dev/zero of=/data/more bs=4096 count=1 conv=fsync 2>/dev/null; do :; done; echo failed";
    let volume = || storage("blk", "10/00", "ext4");
    guest.create(&with_volume(vm, "writer", script, volume())).await.unwrap();
    guest.start("writer").await.unwrap();
    guest.read_until("writer", "", "written\n").await;
    guest.write("writer", "", b"\n").await.unwrap();
    deadline(vm.running.unplug("blk0")).await.unwrap();
    guest.read_until("writer", "", "failed\n").await;
    assert_eq!(guest.wait("writer", "").await.unwrap(), 0);
    others_go_on(vm, guest, "disk").await;
    // That something could not be written out is told, once, and nothing stays.
    if let Err(error) = guest.remove("writer").await {
        assert!(error.to_string().contains("write"), "{error}");
        let _gone_or_told = guest.remove("writer").await;
    }
    // The place is free, and the disk, back again, has what was on it.
    plug(vm, virtio_disk("blk0", 0, "disk")).await;
    let output = guest.run(&with_volume(vm, "reader", "cat /data/kept", volume())).await;
    assert_eq!(output.stdout, "kept\n", "{output:?}");
}

fn privileged(container: &mut Container) {
    let capabilities = container.process().Capabilities.mut_or_insert_default();
    for set in [&mut capabilities.Bounding, &mut capabilities.Permitted, &mut capabilities.Effective] {
        set.extend(CAPABILITIES.map(String::from));
    }
}

/// CVE-2020-2023, CVE-2026-24834: with every capability there is, a container makes the nodes of all disks of the
/// guest, of its memory, its log and its way to the host, and opens none of them.
async fn no_device_that_was_not_granted(vm: &mut Vm, guest: &Guest) {
    let script = r#"
        try() { mknod /try "$1" "$2" "$3" || echo FAILED
            (: </try) 2>&1 | sed "s/^/$1 $2:$3 /"; (: </try) 2>/dev/null && echo "OPENED $1 $2:$3"; rm /try; }
        tail -n +3 /proc/partitions | while read major minor rest; do try b $major $minor; done
        while read minor name; do try c 10 $minor; done </proc/misc
        for minor in 1 2 4 11; do try c 1 $minor; done
        for minor in 0 64; do try c 4 $minor; done; echo done"#;
    let mut container = vm.shell("maker", script);
    privileged(&mut container);
    let output = guest.run(&container).await;
    assert!(output.stdout.ends_with("done\n") && !output.stdout.contains("OPENED"), "{output:?}");
    assert!(!output.stdout.contains("FAILED"), "{output:?}");
    let refused = output.stdout.lines().filter(|line| line.contains("Operation not permitted")).count();
    assert!(refused > 8 && output.stdout.contains("b 25"), "the plugged disk, and more: {output:?}");
}

/// As root in its own root file system, and with what the guest was booted from out of reach.
async fn everything_is_overwritten(vm: &Vm, guest: &Guest) {
    let script =
        "for f in $(find / -xdev -type f ! -name busybox 2>/dev/null); do echo gone >$f; done; echo done";
    let mut container = vm.shell("vandal", script);
    privileged(&mut container);
    assert!(guest.run(&container).await.stdout.ends_with("done\n"));
}

async fn a_shared_directory(vm: &mut Vm, guest: &Guest, host: &mut Host) {
    let shared = host.dir.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("file"), "from the host\n").unwrap();
    let socket = host.share(&shared, "share");
    plug_share(vm, guest, &socket, "share").await;
    let script = "cat /data/file; read x; cat /data/file; echo $?";
    let reader = with_volume(vm, "shares", script, storage("virtio-fs", "kataShared", "virtiofs"));
    guest.create(&reader).await.unwrap();
    guest.start("shares").await.unwrap();
    guest.read_until("shares", "", "from the host\n").await;
    host.end_share();
    guest.write("shares", "", b"\n").await.unwrap();
    // It waits for an answer that never comes, in the kernel, and with it whoever wants to end it.
    let removal = tokio::spawn({
        let guest = guest.clone();
        async move { guest.remove("shares").await }
    });
    for round in ["share-1", "share-2", "share-3"] {
        others_go_on(vm, guest, round).await;
    }
    removal.abort();
}
