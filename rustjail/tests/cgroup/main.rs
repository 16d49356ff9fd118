//! Control groups against the real kernel, as root. The machine's own layout is whatever it is (v1 hybrid
//! where this is developed); the pure layouts are made in a mount namespace, in which this binary runs one
//! of its `view_*` tests again. Every group has a unique name and is killed and removed when dropped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod begun;
mod events;
mod group;
mod parents;
mod updates;

use std::{
    fs,
    path::Path,
    process::{Command, id},
    time::{Duration, Instant},
};

use rustjail::cgroup::{Cgroup, CgroupError, Hierarchies};

use self::group::{Group, has_v1, unique};

/// Runs one of the ignored tests below in a mount namespace prepared by `mounts`.
fn in_view(mounts: &str, test: &str) {
    let binary = std::env::current_exe().unwrap();
    let script = format!("set -e; {mounts}; exec {} --exact {test} --ignored --nocapture", binary.display());
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "in the view: {text}");
}

const ONLY_V1: &str = "umount /sys/fs/cgroup/unified";
const ONLY_V2: &str = "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup";
/// Two controllers that machines seldom have mounted: a tree that only this view sees, and that goes with it.
const NETWORK: &str = "umount -R /sys/fs/cgroup; mount -t tmpfs none /sys/fs/cgroup; cd /sys/fs/cgroup; \
                       mkdir net_cls,net_prio; mount -t cgroup -o net_cls,net_prio none net_cls,net_prio";
const NOTHING: &str = "umount -R /sys/fs/cgroup";

/// Everything a container's life asks of its group.
fn lifecycle() {
    let group = Group::new("{}");
    assert!(!group.group.populated().unwrap());
    let mut first = group.start("exec sleep 1000");
    let mut second = group.start("sleep 1000 & exec sleep 1000");
    let deadline = Instant::now() + Duration::from_secs(10);
    while group.group.pids().unwrap().len() < 3 {
        assert!(Instant::now() < deadline, "{:?}", group.group.pids());
    }
    assert!(group.group.populated().unwrap());
    let error = group.group.delete().unwrap_err();
    assert!(matches!(error, CgroupError::Busy { .. }), "{error}");
    let error = Cgroup::create(&group.hierarchies, &group.path, None).unwrap_err();
    assert!(matches!(error, CgroupError::Occupied { .. }), "{error}");

    group.group.freeze().unwrap();
    assert!(group.group.frozen().unwrap());
    group.group.freeze().unwrap();
    group.group.thaw().unwrap();
    assert!(!group.group.frozen().unwrap());
    group.group.freeze().unwrap();

    // Another holder of the same group, as after a restart, kills it frozen.
    let again = Cgroup::open(&group.hierarchies, &group.path).unwrap();
    assert_eq!(again.pids().unwrap().len(), 3);
    again.kill().unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(137));
    assert_eq!(second.wait().unwrap().code(), Some(137));
    group.wait_until_empty();
    assert_eq!(group.group.pids().unwrap(), Vec::<i32>::new());
    group.group.delete().unwrap();
    group.group.delete().unwrap();
    assert!(Cgroup::open(&group.hierarchies, &group.path).is_err());
    assert!(!again.populated().unwrap());
    again.kill().unwrap();
}

#[test]
fn a_life_in_this_machines_layout() {
    lifecycle();
}

#[test]
fn a_life_with_v1_alone() {
    in_view(ONLY_V1, "view_lifecycle");
}

#[test]
fn a_life_with_v2_alone() {
    in_view(ONLY_V2, "view_lifecycle");
}

#[test]
#[ignore = "run in a view by other tests"]
fn view_lifecycle() {
    lifecycle();
}

#[test]
fn without_any_hierarchy_groups_are_names() {
    in_view(NOTHING, "view_nothing");
}

#[test]
#[ignore = "run in a view by other tests"]
fn view_nothing() {
    let hierarchies = Hierarchies::detect().unwrap();
    assert!(hierarchies.is_empty());
    let group = Cgroup::create(&hierarchies, &unique(), None).unwrap();
    let placement = group.placement().unwrap();
    assert!(placement.into.is_none() && placement.tasks.is_empty());
    assert!(group.events().is_none() && group.pids().unwrap().is_empty() && !group.populated().unwrap());
    group.freeze().unwrap();
    group.thaw().unwrap();
    group.kill().unwrap();
    group.delete().unwrap();
    assert_eq!(group.stats().unwrap(), Default::default());
    let limit = serde_json::from_str(r#"{"pids": {"limit": 3}}"#).unwrap();
    assert!(matches!(group.update(&limit), Err(CgroupError::NoController { .. })));
    let rules = serde_json::from_str(r#"{"devices": [{"allow": false, "access": "rwm"}]}"#).unwrap();
    let error = Cgroup::create(&hierarchies, &unique(), Some(&rules)).unwrap_err();
    assert!(matches!(error, CgroupError::NoController { .. }), "{error}");
}

/// What is mounted below another mount is listed, but not there.
#[test]
fn hidden_hierarchies_are_not_used() {
    in_view("mount -t tmpfs none /sys/fs/cgroup", "view_hidden");
}

#[test]
#[ignore = "run in a view by other tests"]
fn view_hidden() {
    assert!(Hierarchies::detect().unwrap().is_empty());
}

#[test]
fn nested_groups_are_killed_and_removed() {
    let group = Group::new("{}");
    let mut nested = Vec::new();
    for tree in fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path()) {
        let top = tree.join(group.path.as_path());
        if top.is_dir() {
            let deep = top.join(["a"; 40].join("/"));
            fs::create_dir_all(&deep).unwrap();
            (0..20).for_each(|wide| fs::create_dir(top.join(format!("wide{wide}"))).unwrap());
            nested.push(deep.join("cgroup.procs"));
        }
    }
    assert!(!nested.is_empty());
    let mut child = group.start("exec sleep 1000");
    let pid = group.group.pids().unwrap()[0].to_string();
    if !has_v1("cpuset") {
        nested.iter().for_each(|procs| fs::write(procs, &pid).unwrap());
    } else {
        // A nested v1 cpuset has no CPUs, so nothing may move there.
        nested.iter().filter(|procs| !procs.starts_with("/sys/fs/cgroup/cpuset")).for_each(|procs| {
            fs::write(procs, &pid).unwrap();
        });
    }
    assert_eq!(group.group.pids().unwrap().len(), 1);
    assert!(matches!(group.group.delete(), Err(CgroupError::Busy { .. })));
    group.group.kill().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(137));
    group.wait_until_empty();
    group.group.delete().unwrap();
    assert!(nested.iter().all(|procs| !procs.exists()));
}

/// A workload that hands controllers on may have no process beside its groups (EBUSY), so a new one joins
/// those it has.
#[test]
fn a_new_process_joins_where_the_workload_moved() {
    let group = Group::new("{}");
    let Some(tree) = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].iter().map(Path::new).find(|tree| {
        fs::read_to_string(tree.join("cgroup.controllers"))
            .is_ok_and(|controllers| controllers.contains("hugetlb"))
    }) else {
        return;
    };
    let top = tree.join(group.path.as_path());
    let mut first = group.start("exec sleep 1000");
    let mut second = Vec::new();
    for name in ["payload", "init"] {
        fs::create_dir(top.join(name)).unwrap();
        for pid in group.group.pids().unwrap() {
            fs::write(top.join(name).join("cgroup.procs"), pid.to_string()).unwrap();
        }
        fs::write(top.join("cgroup.subtree_control"), "+hugetlb").unwrap();
        second.push(group.start("exec sleep 1000"));
        let members = fs::read_to_string(top.join(name).join("cgroup.procs")).unwrap();
        assert!(members.lines().count() >= 2, "{name}: {members}");
    }
    group.group.kill().unwrap();
    group.wait_until_empty();
    first.wait().unwrap();
    second.into_iter().for_each(|mut child| assert_eq!(child.wait().unwrap().code(), Some(137)));
}

#[test]
fn a_failed_create_leaves_nothing() {
    let hierarchies = Hierarchies::detect().unwrap();
    let path = unique();
    let resources = serde_json::from_str(r#"{"unified": {"memory.nonsense": "1"}}"#).unwrap();
    assert!(Cgroup::create(&hierarchies, &path, Some(&resources)).is_err());
    assert!(Cgroup::open(&hierarchies, &path).is_err());
    for tree in fs::read_dir("/sys/fs/cgroup").unwrap() {
        assert!(!tree.unwrap().path().join(path.as_path()).exists());
    }
}

#[test]
fn v1_limits_are_in_the_files_and_updates_change_only_what_they_name() {
    if !has_v1("memory") {
        return;
    }
    let group = Group::new(
        r#"{"memory": {"limit": 67108864, "swap": 100663296, "reservation": 33554432, "swappiness": 10,
                       "disableOOMKiller": true, "kernel": 1},
            "cpu": {"shares": 512, "quota": 20000, "period": 50000, "burst": 5000, "cpus": "0", "mems": "0"},
            "pids": {"limit": 77}, "unified": {"cgroup.max.depth": "3"}}"#,
    );
    let memory = |file| group.file("memory", file);
    assert_eq!(memory("memory.limit_in_bytes"), "67108864");
    assert_eq!(memory("memory.memsw.limit_in_bytes"), "100663296");
    assert_eq!(memory("memory.soft_limit_in_bytes"), "33554432");
    assert_eq!(memory("memory.swappiness"), "10");
    assert!(memory("memory.oom_control").starts_with("oom_kill_disable 1"));
    assert_eq!(group.file("cpu", "cpu.shares"), "512");
    assert_eq!(group.file("cpu", "cpu.cfs_quota_us"), "20000");
    assert_eq!(group.file("cpu", "cpu.cfs_period_us"), "50000");
    assert_eq!(group.file("cpu", "cpu.cfs_burst_us"), "5000");
    assert_eq!(group.file("cpuset", "cpuset.cpus"), "0");
    assert_eq!(group.file("pids", "pids.max"), "77");
    assert_eq!(group.file("unified", "cgroup.max.depth"), "3");

    // Raised above both, then lowered below both: each needs the other order of writes.
    group.update(r#"{"memory": {"limit": 268435456, "swap": 268435456}}"#).unwrap();
    assert_eq!(memory("memory.limit_in_bytes"), "268435456");
    group.update(r#"{"memory": {"limit": 33554432, "swap": 33554432}}"#).unwrap();
    assert_eq!(memory("memory.memsw.limit_in_bytes"), "33554432");
    assert_eq!(memory("memory.swappiness"), "10");
    group.update(r#"{"memory": {"limit": -1}}"#).unwrap();
    assert_eq!(memory("memory.memsw.limit_in_bytes"), "9223372036854771712");
    assert_eq!(memory("memory.limit_in_bytes"), "9223372036854771712");

    // A quota below the present burst, together with a smaller burst.
    group.update(r#"{"cpu": {"quota": 3000, "burst": 1000}}"#).unwrap();
    assert_eq!(group.file("cpu", "cpu.cfs_quota_us"), "3000");
    group
        .update(r#"{"cpu": {"quota": -1, "burst": 0, "idle": 1, "shares": 1024}, "pids": {"limit": -1}}"#)
        .unwrap();
    assert_eq!(group.file("cpu", "cpu.cfs_quota_us"), "-1");
    assert_eq!(group.file("cpu", "cpu.cfs_period_us"), "50000");
    assert_eq!(group.file("cpu", "cpu.idle"), "1");
    assert_eq!(group.file("pids", "pids.max"), "max");
    group.update(r#"{"cpu": {"idle": 0, "shares": 2048}, "pids": {"limit": 0}}"#).unwrap();
    assert_eq!(group.file("cpu", "cpu.shares"), "2048");
    assert_eq!(group.file("pids", "pids.max"), "max");
}

#[test]
fn limits_that_cannot_be_kept_are_errors() {
    let group = Group::new("{}");
    for (resources, expected) in [
        (r#"{"rdma": {"mlx5_1": {"hcaHandles": 3}}}"#, "no rdma controller"),
        (r#"{"network": {"classID": 5}}"#, "no net_cls controller"),
        (r#"{"unified": {"memory.nonsense": "1"}}"#, "memory"),
        (r#"{"unified": {"../x": "1"}}"#, "is invalid"),
        (r#"{"memory": {"limit": -7}}"#, "is invalid"),
    ] {
        let error = group.update(resources).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_memory_limit_below_the_use_is_refused_when_asked() {
    if !has_v1("memory") {
        return;
    }
    let group = Group::new("{}");
    let mut child =
        group.start(r#"exec perl -e 'my $x = "a" x (8 << 20); syswrite(STDOUT, "ready"); sleep 1000'"#);
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    let error = group.update(r#"{"memory": {"limit": 4194304, "checkBeforeUpdate": true}}"#).unwrap_err();
    assert!(matches!(error, CgroupError::BelowUsage { limit: 4_194_304, .. }), "{error}");
    group.group.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn v1_block_io() {
    if !has_v1("blkio") {
        return;
    }
    let group = Group::new(
        r#"{"blockIO": {"weight": 200, "throttleReadBpsDevice": [{"major": 254, "minor": 0, "rate": 1048576}],
                        "throttleWriteIOPSDevice": [{"major": 254, "minor": 0, "rate": 100}]}}"#,
    );
    assert_eq!(group.file("blkio", "blkio.bfq.weight"), "200");
    assert_eq!(group.file("blkio", "blkio.throttle.read_bps_device"), "254:0 1048576");
    assert_eq!(group.file("blkio", "blkio.throttle.write_iops_device"), "254:0 100");
    let leaf = group.update(r#"{"blockIO": {"leafWeight": 200}}"#).unwrap_err();
    assert!(matches!(leaf, CgroupError::NoFile { .. }), "{leaf}");
}

#[test]
fn hugetlb_on_the_cgroup2_tree_of_a_hybrid() {
    let controllers = fs::read_to_string("/sys/fs/cgroup/unified/cgroup.controllers").unwrap_or_default();
    if !controllers.contains("hugetlb") || !Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists() {
        return;
    }
    let group = Group::new(r#"{"hugepageLimits": [{"pageSize": "2MB", "limit": 4194304}]}"#);
    assert_eq!(group.file("unified", "hugetlb.2MB.max"), "4194304");
    assert_eq!(group.file("unified", "hugetlb.2MB.rsvd.max"), "4194304");
    group.update(r#"{"unified": {"hugetlb.2MB.max": "max"}}"#).unwrap();
    assert_eq!(group.file("unified", "hugetlb.2MB.max"), "max");
    assert_eq!(group.group.stats().unwrap().hugetlb["2MB"].usage, 0);
}

#[test]
fn packets_are_tagged_where_the_kernel_can() {
    if is_free("net_cls") && is_free("net_prio") {
        let _free = Freed;
        in_view(NETWORK, "view_packets");
    }
}

/// Whether no hierarchy has the controller.
fn is_free(name: &str) -> bool {
    let controllers = fs::read_to_string("/proc/cgroups").unwrap();
    controllers.lines().any(|line| line.starts_with(&format!("{name}\t0\t")))
}

/// A tree whose last group is not gone yet when it is unmounted stays, in sight of every process of the machine.
struct Freed;

impl Drop for Freed {
    fn drop(&mut self) {
        let again = "mount -t cgroup -o net_cls,net_prio none /mnt; umount /mnt";
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_free("net_cls") && Instant::now() < deadline {
            Command::new("unshare").args(["-m", "sh", "-c", again]).status().unwrap();
        }
    }
}

#[test]
#[ignore = "run in a view by other tests"]
fn view_packets() {
    let group =
        Group::new(r#"{"network": {"classID": 1048577, "priorities": [{"name": "lo", "priority": 3}]}}"#);
    // As a process in the group finds it.
    let look = "cd /sys/fs/cgroup/net_cls,net_prio$(cut -d: -f3 /proc/self/cgroup | grep berth-test); \
                cat net_cls.classid; grep ^lo net_prio.ifpriomap";
    assert_eq!(String::from_utf8_lossy(&group.run(look).stdout), "1048577\nlo 3\n");
    group.update(r#"{"network": {"classID": 7}}"#).unwrap();
    assert_eq!(group.file("net_cls,net_prio", "net_cls.classid"), "7");
    let missing = group.update(r#"{"network": {"priorities": [{"name": "nosuch0", "priority": 3}]}}"#);
    assert!(missing.unwrap_err().to_string().contains("net_prio.ifpriomap"));
}

#[test]
fn the_pids_limit_stops_forks() {
    if !has_v1("pids") {
        return;
    }
    let group = Group::new(r#"{"pids": {"limit": 5}}"#);
    let output = group.run(
        r#"exec perl -e 'my $n = 0; while (1) { my $p = fork(); last unless defined $p; if (!$p) { close(STDOUT); close(STDERR); sleep 1000 } $n++ } print $n'"#,
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4");
    let pids = group.group.stats().unwrap().pids.unwrap();
    assert_eq!((pids.current, pids.limit), (4, 5));
}

#[test]
fn stats_count_what_was_used() {
    let group = Group::new("{}");
    let before = group.group.stats().unwrap();
    assert_eq!(group.run("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").status.code(), Some(0));
    let after = group.group.stats().unwrap();
    let (before, cpu) = (before.cpu.unwrap(), after.cpu.unwrap());
    assert!(cpu.usage > before.usage + 5_000_000, "{cpu:?}");
    assert!(cpu.user > 0, "{cpu:?}");
    if has_v1("cpuacct") {
        assert_eq!(cpu.per_cpu.iter().sum::<u64>(), cpu.usage);
        assert_eq!(cpu.per_cpu_user.iter().sum::<u64>(), cpu.user);
        assert_eq!(cpu.per_cpu_system.len(), cpu.per_cpu.len());
        assert!(after.memory.unwrap().detail.contains_key("total_rss"));
    }
}

/// The default nodes work, others do not, and an update changes that for processes that run already.
fn device_rules() {
    let group = Group::new(r#"{"devices": [{"allow": false, "access": "rwm"}]}"#);
    let opens = |file: &str| group.run(&format!("exec 3<>{file}")).status.success();
    assert!(opens("/dev/null") && opens("/dev/zero") && opens("/dev/urandom"));
    assert!(!opens("/dev/kmsg") && !opens("/dev/fuse"));
    group
        .update(
            r#"{"devices": [{"allow": false, "access": "rwm"},
                            {"allow": true, "type": "c", "major": 1, "minor": 11, "access": "rw"},
                            {"allow": false, "type": "c", "major": 1, "minor": 5, "access": "w"}]}"#,
        )
        .unwrap();
    assert!(opens("/dev/null") && opens("/dev/kmsg") && !opens("/dev/zero"));
    assert!(group.run("exec 3</dev/zero").status.success());
    group.update(r#"{"pids": {}}"#).unwrap();
    assert!(opens("/dev/kmsg"));

    group.update(r#"{"devices": [{"allow": true, "access": "rwm"}]}"#).unwrap();
    assert!(opens("/dev/fuse"));
    group.update(r#"{"devices": []}"#).unwrap();
    assert!(!opens("/dev/fuse"));

    // CVE-2020-2023: a node for a disk can be made, and is of no use.
    let node = std::env::temp_dir().join(format!("berth-node-{}", id()));
    let made = group.run(&format!("mknod {0} b 254 0 && ! dd if={0} of=/dev/null count=1", node.display()));
    let _ = fs::remove_file(&node);
    assert!(made.status.success(), "{made:?}");
    assert!(String::from_utf8_lossy(&made.stderr).contains("Operation not permitted"), "{made:?}");

    let group = Group::new(r#"{"devices": [{"allow": true, "access": "rwm"}]}"#);
    assert!(group.run("exec 3<>/dev/kmsg").status.success());
    // A group nobody wrote rules for is closed as well.
    let path = unique();
    let plain = Cgroup::create(&group.hierarchies, &path, None).unwrap();
    let plain = Group { hierarchies: group.hierarchies.clone(), path, group: plain };
    assert!(!plain.run("exec 3<>/dev/kmsg").status.success());
}

#[test]
fn device_rules_in_this_machines_layout() {
    device_rules();
}

#[test]
fn device_rules_by_a_program() {
    in_view(ONLY_V2, "view_device_rules");
}

#[test]
fn device_rules_where_trees_are_mounted_elsewhere() {
    let all =
        "mount --rbind /sys/fs/cgroup /mnt; umount -R /sys/fs/cgroup; mount -t tmpfs none /sys/fs/cgroup";
    in_view(all, "view_device_rules");
    if has_v1("devices") {
        let one = "mount --bind /sys/fs/cgroup/devices /mnt; umount /sys/fs/cgroup/devices";
        in_view(one, "view_device_rules");
    }
}

#[test]
#[ignore = "run in a view by other tests"]
fn view_device_rules() {
    device_rules();
}

#[test]
fn a_v1_device_update_works_with_groups_below() {
    if !has_v1("devices") {
        return;
    }
    let group = Group::new("{}");
    fs::create_dir(Path::new("/sys/fs/cgroup/devices").join(group.path.as_path()).join("below")).unwrap();
    group
        .update(r#"{"devices": [{"allow": true, "type": "c", "major": 1, "minor": 11, "access": "r"}]}"#)
        .unwrap();
    assert!(group.file("devices", "devices.list").contains("c 1:11 r"));
    group.update(r#"{"devices": []}"#).unwrap();
    assert!(!group.file("devices", "devices.list").contains("c 1:11"));
}
