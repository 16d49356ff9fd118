//! The memory agent where it can work: a guest with cgroup v2, pressure information and a disk, whose command line
//! switches it on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{fs, path::Path, process::Command, time::Duration};

use berth::{Guest, Rootfs, Vm, deadline, scratch_dir};
use berth_protocols::{
    agent::{MemAgentMemcgConfig, Storage},
    oci,
};
use berthctl::{address::LOG_PORT, vmm::Room};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::timeout,
};

const MIB: u64 = 1 << 20;
/// What the container reads, and so has in the page cache.
const READ: u64 = 40 * MIB;
const VOLUME: &str = "/run/kata-containers/sandbox/volume";

/// Everything the works need but the time: in ten minutes, as the boot has it, nothing happens here.
const AT_BOOT: [&str; 8] = [
    "psi=1",
    "maxcpus=1",
    "agent.log=debug",
    "agent.log_vport=1025",
    "agent.mem_agent_enable",
    "agent.mem_agent_memcg_eviction_run_aging_count_min=1",
    "agent.mem_agent_memcg_period_psi_percent_limit=100",
    "agent.mem_agent_memcg_eviction_psi_percent_limit=100",
];

/// A file system with one file.
fn image(dir: &Path) -> String {
    let (content, image) = (dir.join("content"), dir.join("disk.img"));
    fs::create_dir(&content).unwrap();
    fs::write(content.join("file"), vec![b'x'; READ as usize]).unwrap();
    fs::File::create(&image).unwrap().set_len(2 * READ).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-d"]).arg(&content).arg(&image).output();
    let made = made.expect("mkfs.ext4 (package e2fsprogs)");
    assert!(made.status.success(), "{made:?}");
    image.display().to_string()
}

async fn memory_of(guest: &Guest, id: &str) -> (u64, u64) {
    let stats = guest.stats(id).await.unwrap();
    (stats.cgroup_stats.memory_stats.usage.usage, stats.cgroup_stats.memory_stats.cache)
}

#[tokio::test]
async fn cold_memory_is_taken_back_from_a_container() {
    let dir = scratch_dir("memory");
    let drive = format!("file={},if=none,id=disk,format=raw,cache=unsafe", image(&dir));
    let arguments = ["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"].map(str::to_owned).to_vec();
    let room = Room { arguments, ..Room::default() };
    let vm = Vm::boot_roomy(&AT_BOOT, &Rootfs::busybox(), room).await;
    fs::remove_dir_all(&dir).unwrap();
    let guest = vm.client().await;
    guest.create_sandbox("berth-vm").await.unwrap();

    let mut container = vm.shell("reader", "cat /data/file >/dev/null; echo read; exec sleep 1000");
    container.request.storages.push(Storage {
        driver: "mmioblk".into(),
        source: "/dev/vda".into(),
        fstype: "ext4".into(),
        mount_point: VOLUME.into(),
        options: vec!["ro".into()],
        ..Default::default()
    });
    container.spec().Mounts.push(oci::Mount {
        destination: "/data".into(),
        source: VOLUME.into(),
        type_: "bind".into(),
        options: vec!["bind".into(), "ro".into()],
        ..Default::default()
    });
    guest.create(&container).await.unwrap();
    guest.start("reader").await.unwrap();
    guest.read_until("reader", "", "read").await;
    let (usage, cache) = memory_of(&guest, "reader").await;
    assert!(cache >= READ && usage >= READ, "what was read stays: {usage} in use, {cache} of it cached");

    let log = vm.running.address().connect_beside("log", LOG_PORT).await.unwrap();
    let mut lines = BufReader::new(log).lines();
    // The boot has switched it on; a host only has it do sooner what it does anyway.
    let request = MemAgentMemcgConfig { period_secs: Some(1), ..Default::default() };
    deadline(guest.agent.mem_agent_memcg_set(ttrpc::context::with_timeout(0), &request)).await.unwrap();
    let taken = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("the log goes on");
            if line.contains("took cold memory back") {
                let (usage, cache) = memory_of(&guest, "reader").await;
                if cache < READ / 4 && usage < READ / 2 {
                    return;
                }
            }
        }
    };
    let taken = timeout(Duration::from_secs(60), taken).await;
    assert!(taken.is_ok(), "{:?}\n{}", memory_of(&guest, "reader").await, vm.running.console());
    // It runs on, and what was taken is read again.
    let again = guest.run_in("reader", "again", &["sh", "-c", "cat /data/file | wc -c"]).await;
    assert_eq!((again.status, again.stdout.trim()), (0, READ.to_string().as_str()));
    guest.remove("reader").await.unwrap();
}
