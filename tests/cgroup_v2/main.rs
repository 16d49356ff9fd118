//! Control groups on a machine that has cgroup2 alone, with every controller: a VM, in which this very program
//! runs its `guest` tests in a container that owns its part of the tree. That the groups are below a
//! container's own is part of what is tested: delegation to a container is the same thing.
//!
//! A second VM has cgroup v1, with the two controllers that machines seldom have there: `guest_v1`. In a third, systemd
//! owns the tree and makes the groups: `guest_systemd`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod guest;
mod guest_systemd;
mod guest_v1;
mod systemd;

use std::{fs, process::Command};

use berth::{Guest, Rootfs, Vm};
use berth_protocols::oci;
use berthctl::vmm::image;

/// How many tests there are in [`guest`], in [`guest_v1`] and in [`guest_systemd`].
const TESTS: usize = 9;
const V1_TESTS: usize = 2;
const SYSTEMD_TESTS: usize = 2;

#[tokio::test]
async fn every_setting_holds() {
    // QEMU 7.2 emulating two CPUs, which the table needs, now and then stalls a guest for good. A setting that does
    // not hold fails both times.
    let table = || run_in_a_guest(&[], "guest::", TESTS);
    let stalled = async { tokio::task::spawn_local(table()).await.is_err() };
    if tokio::task::LocalSet::new().run_until(stalled).await {
        table().await;
    }
}

#[tokio::test]
async fn huge_pages_and_rdma_hold_on_v1() {
    run_in_a_guest(&["systemd.unified_cgroup_hierarchy=0"], "guest_v1::", V1_TESTS).await;
}

#[tokio::test]
async fn what_systemd_is_told_holds() {
    let rootfs = with_this_program();
    systemd::install(&rootfs, guest_systemd::LIMITS);
    let vm = Vm::boot_with(&[], &rootfs, &[]).await;
    let guest = vm.client().await;
    guest.create_sandbox("berth-systemd").await.unwrap();
    let mut container = vm.shell("c1", "");
    own_the_tree(&mut container);
    systemd::boot(&mut container);
    guest.create(&container).await.unwrap();
    guest.start("c1").await.unwrap();
    let reader = berth::process(&["sh", "-c", "mkfifo /result 2>/dev/null; exec cat /result"]);
    guest.exec("c1", "reader", reader).await.unwrap();
    finish(&guest, "reader", SYSTEMD_TESTS).await;
    guest.signal("c1", "", 9).await.unwrap();
    guest.wait("c1", "").await.unwrap();
    guest.remove("c1").await.unwrap();
}

async fn run_in_a_guest(append: &[&str], which: &str, count: usize) {
    let rootfs = with_this_program();
    // A block device whose rates can be limited.
    let kernel = fs::read_to_string(image::directory().join("kernel-version")).expect("an image");
    let module = format!("modules/lib/modules/{}/kernel/drivers/block/loop.ko", kernel.trim());
    fs::copy(image::directory().join(module), rootfs.path().join("loop.ko")).expect("the loop module");

    let vm = Vm::boot_with(append, &rootfs, &[]).await;
    let guest = vm.client().await;
    guest.create_sandbox("berth-cgroups").await.unwrap();
    let script = format!("exec cgroup_v2 {which} --ignored --test-threads=1 --nocapture 2>&1");
    let mut container = vm.shell("c1", &script);
    own_the_tree(&mut container);
    guest.create(&container).await.unwrap();
    guest.start("c1").await.unwrap();
    finish(&guest, "", count).await;
    assert_eq!(guest.wait("c1", "").await.unwrap(), 0);
    guest.remove("c1").await.unwrap();
}

fn with_this_program() -> Rootfs {
    let rootfs = Rootfs::busybox();
    let program = rootfs.path().join("bin/cgroup_v2");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // Line tables are most of it, and the guest's memory is small.
    assert!(Command::new("strip").arg(&program).status().expect("strip (package binutils)").success());
    rootfs
}

/// Reads to the end of this program's run as the process `exec_id` of the container, all of whose tests pass.
async fn finish(guest: &Guest, exec_id: &str, count: usize) {
    let output = guest.read_until("c1", exec_id, "test result").await;
    println!("{output}");
    assert!(output.contains(&format!("running {count} tests")));
    assert!(output.contains("test result: ok"));
}

/// Its own cgroup namespace, that part of the tree writable, every device and every capability.
fn own_the_tree(container: &mut berth::Container) {
    container.linux().Namespaces.push(oci::LinuxNamespace { Type: "cgroup".into(), ..Default::default() });
    container.linux().ReadonlyPaths.clear();
    let any =
        oci::LinuxDeviceCgroup { Allow: true, Access: "rwm".into(), Type: "a".into(), ..Default::default() };
    container.linux().Resources.mut_or_insert_default().Devices.push(any);
    container.spec().Mounts.push(oci::Mount {
        destination: "/sys/fs/cgroup".into(),
        source: "cgroup".into(),
        type_: "cgroup".into(),
        options: vec!["rw".into()],
        ..Default::default()
    });
    let more = [
        "CAP_SYS_MODULE",
        "CAP_SYS_ADMIN",
        "CAP_SYS_RESOURCE",
        "CAP_BPF",
        "CAP_NET_ADMIN",
        "CAP_PERFMON",
        "CAP_DAC_OVERRIDE",
        "CAP_SETPCAP",
    ];
    let capabilities = container.process().Capabilities.mut_or_insert_default();
    for set in [&mut capabilities.Bounding, &mut capabilities.Effective, &mut capabilities.Permitted] {
        set.extend(more.map(String::from));
    }
}
