//! What a container sees of the machine: namespaces, mounts, devices, masks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{fs, os::unix::fs::symlink};

use serde_json::json;
use support::{Bundle, read};

#[test]
fn each_namespace_is_its_own() {
    let kinds = ["mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let outcome = Bundle::new(
        "for n in mnt pid net ipc uts cgroup user; do readlink /proc/self/ns/$n; done; echo $$; hostname",
    )
    .run();
    let lines: Vec<&str> = outcome.text().lines().collect();
    for (line, kind) in lines.iter().zip(kinds) {
        let ours = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert_ne!(*line, ours.to_str().unwrap(), "{kind}");
    }
    assert_eq!(lines[6], fs::read_link("/proc/self/ns/user").unwrap().to_str().unwrap());
    assert_eq!(lines[7..], ["1", "jail"]);
}

#[test]
fn nothing_of_the_host_is_mounted() {
    let outcome = Bundle::new("cat /proc/self/mountinfo").run();
    let mut points: Vec<&str> = outcome.text().lines().map(|line| line.split(' ').nth(4).unwrap()).collect();
    points.sort_unstable();
    points.dedup();
    let expected =
        ["/", "/dev", "/dev/mqueue", "/dev/pts", "/dev/shm", "/proc", "/proc/keys", "/proc/sys", "/sys"];
    // Not every kernel has all that is masked.
    let masked = |point: &&str| point.starts_with("/proc/") || *point == "/sys/firmware";
    points.retain(|point| !masked(point) || expected.contains(point));
    assert_eq!(points, expected, "{outcome:?}");
    assert!(!outcome.text().contains("shared:"), "{outcome:?}");
}

#[test]
fn the_root_can_be_read_only() {
    let mut bundle = Bundle::new("touch /x 2>&1; touch /dev/shm/x && echo fine");
    bundle.set("/root/readonly", json!(true));
    assert_eq!(bundle.run().text(), "touch: /x: Read-only file system\nfine");
}

#[test]
fn default_devices_work_and_links_are_there() {
    let script = "for d in null zero full random urandom tty; do stat -c '%n %F %t:%T %a' /dev/$d; done; \
                  for l in fd stdin stdout stderr ptmx; do readlink /dev/$l; done; \
                  echo x > /dev/null && echo y > /dev/stdout; [ $(cat /dev/null | wc -c) = 0 ] && echo empty";
    let expected = "/dev/null character special file 1:3 666\n/dev/zero character special file 1:5 666\n\
                    /dev/full character special file 1:7 666\n/dev/random character special file 1:8 666\n\
                    /dev/urandom character special file 1:9 666\n/dev/tty character special file 5:0 666\n\
                    /proc/self/fd\n/proc/self/fd/0\n/proc/self/fd/1\n/proc/self/fd/2\npts/ptmx\ny\nempty";
    assert_eq!(Bundle::new(script).run().text(), expected);
}

#[test]
fn listed_devices_are_made_as_asked() {
    let mut bundle = Bundle::new("stat -c '%n %F %t:%T %a %u:%g' /dev/net/tun /dev/fifo /dev/blk");
    bundle.set(
        "/linux/devices",
        json!([
            {"path": "/dev/net/tun", "type": "c", "major": 10, "minor": 200, "fileMode": 0o640, "uid": 3, "gid": 4},
            {"path": "/dev/fifo", "type": "p", "fileMode": 0o600},
            {"path": "/dev/blk", "type": "b", "major": 7, "minor": 9},
        ]),
    );
    assert_eq!(
        bundle.run().text(),
        "/dev/net/tun character special file a:c8 640 3:4\n/dev/fifo fifo 0:0 600 0:0\n/dev/blk block special file 7:9 666 0:0"
    );
}

#[test]
fn masked_paths_are_empty_and_stay_so() {
    let mut bundle = Bundle::new(
        "cat /secret; ls -A /hidden; ls -A /proc/irq; echo x > /secret; touch /hidden/x 2>/dev/null || echo refused",
    );
    fs::write(bundle.rootfs().join("secret"), "secret").unwrap();
    fs::create_dir(bundle.rootfs().join("hidden")).unwrap();
    fs::write(bundle.rootfs().join("hidden/file"), "secret").unwrap();
    bundle.set("/linux/maskedPaths", json!(["/secret", "/hidden", "/proc/irq", "/not/there"]));
    bundle.set("/linux/readonlyPaths", json!([]));
    assert_eq!(bundle.run().text(), "refused");
    assert_eq!(read(bundle.rootfs().join("secret")), "secret");
}

/// Row S2 of the reliability tests.
#[test]
fn a_mask_is_the_null_device_whatever_the_image_has_there() {
    // CVE-2025-31133: no /dev mount, and the image's /dev/null leads somewhere else.
    let mut bundle = Bundle::new("stat -c '%t:%T' /secret");
    fs::write(bundle.rootfs().join("secret"), "secret").unwrap();
    fs::write(bundle.rootfs().join("bait"), "").unwrap();
    symlink("../bait", bundle.rootfs().join("dev/null")).unwrap();
    bundle.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
    bundle.set("/linux/maskedPaths", json!(["/secret"]));
    assert!(bundle.run().refusal().contains("cannot make the device /dev/null"));
}

#[test]
fn read_only_paths_cannot_be_written() {
    let outcome = Bundle::new("echo 1 > /proc/sys/kernel/msgmax").run();
    assert!(outcome.stderr.contains("Read-only file system"), "{outcome:?}");
}

#[test]
fn sysctls_are_set_in_the_containers_namespaces() {
    let mut bundle = Bundle::new("cat /proc/sys/kernel/msgmax /proc/sys/net/ipv4/ip_unprivileged_port_start");
    bundle
        .set("/linux/sysctl", json!({"kernel.msgmax": "1234", "net.ipv4.ip_unprivileged_port_start": "99"}));
    assert_eq!(bundle.run().text(), "1234\n99");
    bundle.set("/linux/sysctl", json!({"vm.swappiness": "1"}));
    assert!(bundle.run().refusal().contains("belongs to no namespace"));
}

#[test]
fn bind_mounts_have_their_options() {
    let mut bundle = Bundle::new(
        "cat /etc/given /data/file; touch /data/x 2>/dev/null || echo ro; touch /data/sub/x && echo rw; \
         grep ' /data ' /proc/self/mountinfo | grep -c nosuid,nodev,noexec",
    );
    let source = bundle.path.join("source");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("file"), "in data\n").unwrap();
    fs::write(bundle.path.join("given"), "given\n").unwrap();
    bundle.set("/mounts/-", json!({"destination": "/data", "source": source, "options": ["rbind", "ro", "nosuid", "nodev", "noexec"]}));
    bundle.set("/mounts/-", json!({"destination": "/data/sub", "source": "source/sub", "options": ["bind"]}));
    bundle.set("/mounts/-", json!({"destination": "/etc/given", "type": "bind", "source": "given"}));
    assert_eq!(bundle.run().text(), "given\nin data\nro\nrw\n1");
    assert!(source.join("sub/x").exists());
}

#[test]
fn a_recursive_option_reaches_the_mounts_below() {
    let mut bundle =
        Bundle::new("touch /data/x 2>/dev/null || echo ro; touch /data/shm/x 2>/dev/null || echo ro");
    fs::create_dir_all(bundle.path.join("host/shm")).unwrap();
    bundle.set("/mounts/-", json!({"destination": "/data", "source": "/dev", "options": ["rbind", "rro"]}));
    assert_eq!(bundle.run().text(), "ro\nro");
}

/// Row A4 of the reliability tests (CVE-2020-2026).
#[test]
fn destinations_are_links_only_within_the_root() {
    let mut bundle = Bundle::new("ls /victim/escape /outside");
    let outside = bundle.path.join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(bundle.rootfs().join("victim")).unwrap();
    symlink("/victim", bundle.rootfs().join("absolute")).unwrap();
    symlink("../../../outside", bundle.rootfs().join("relative")).unwrap();
    fs::create_dir(bundle.path.join("source")).unwrap();
    symlink("../../../nowhere/yet", bundle.rootfs().join("dangling")).unwrap();
    for destination in ["/absolute/escape", "/relative", "/dangling"] {
        bundle.set("/mounts/-", json!({"destination": destination, "source": "source", "options": ["bind"]}));
    }
    assert_eq!(bundle.run().text(), "/outside:\n\n/victim/escape:");
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
    assert!(bundle.rootfs().join("nowhere/yet").is_dir() && !bundle.path.join("nowhere").exists());

    symlink("around", bundle.rootfs().join("round")).unwrap();
    symlink("round", bundle.rootfs().join("around")).unwrap();
    let round = json!({"destination": "/round/x", "source": "source", "options": ["bind"]});
    bundle.set("/mounts/-", round);
    assert!(bundle.run().refusal().contains("make beneath the root /round/x"));
}

/// Row S2 of the reliability tests.
#[test]
fn proc_sys_and_dev_may_not_be_links() {
    for (place, step) in [("proc", "/proc"), ("sys", "/sys"), ("dev", "/dev")] {
        let bundle = Bundle::new("true");
        fs::create_dir(bundle.path.join("victim")).unwrap();
        fs::remove_dir(bundle.rootfs().join(place)).unwrap();
        symlink("../victim", bundle.rootfs().join(place)).unwrap();
        let outcome = bundle.run();
        assert!(outcome.refusal().contains(&format!("no symbolic link is allowed, {step}")), "{outcome:?}");
        assert_eq!(fs::read_dir(bundle.path.join("victim")).unwrap().count(), 0);
    }
}

/// Row S2 of the reliability tests.
#[test]
fn devices_are_not_made_through_a_linked_dev() {
    // CVE-2026-41579: no /dev mount, and the image's /dev leads elsewhere.
    for target in ["/tmp/x", "/..", "/proc/1/root/dev", "tmp"] {
        let mut bundle = Bundle::new("true");
        fs::remove_dir(bundle.rootfs().join("dev")).unwrap();
        symlink(target, bundle.rootfs().join("dev")).unwrap();
        bundle.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
        for terminal in [true, false] {
            bundle.set("/process/terminal", json!(terminal));
            let outcome = bundle.run();
            assert!(outcome.refusal().contains("no symbolic link is allowed, /dev"), "{outcome:?}");
        }
        assert_eq!(fs::read_dir(bundle.rootfs().join("tmp")).unwrap().count(), 0);
    }
}

/// Row S2 of the reliability tests.
#[test]
fn a_container_without_a_dev_mount_gets_its_devices_in_the_image() {
    let mut bundle = Bundle::new("echo x > /dev/null && echo fine");
    bundle.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
    assert_eq!(bundle.run().text(), "fine");
}

#[test]
fn nothing_is_mounted_within_procfs() {
    let mut bundle = Bundle::new("cat /proc/uptime");
    fs::write(bundle.path.join("uptime"), "1 2").unwrap();
    bundle.set("/mounts/-", json!({"destination": "/proc/uptime", "source": "uptime", "options": ["bind"]}));
    assert_eq!(bundle.run().text(), "1 2");
    bundle.set("/mounts/-", json!({"destination": "/proc/self/attr", "source": "/tmp", "options": ["bind"]}));
    assert!(bundle.run().refusal().contains("within procfs"));
}

#[test]
fn control_groups_are_shown_from_the_containers_group() {
    let mut bundle = Bundle::new(
        "cat /proc/self/cgroup; ls -d /sys/fs/cgroup/* | wc -l; mkdir /sys/fs/cgroup/*/x 2>/dev/null || echo ro",
    );
    bundle.set("/mounts/-", json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]}));
    let outcome = bundle.run();
    let lines: Vec<&str> = outcome.text().lines().collect();
    let (groups, rest) = lines.split_at(lines.len() - 2);
    assert!(groups.iter().all(|line| line.ends_with(":/")), "{outcome:?}");
    assert_ne!(rest[0], "0");
    assert_eq!(rest[1], "ro");
}

#[test]
fn a_container_shares_the_namespaces_it_is_given() {
    let mut bundle = Bundle::new("readlink /proc/self/ns/net; readlink /proc/self/ns/ipc");
    bundle.set(
        "/linux/namespaces",
        json!([{"type": "pid"}, {"type": "mount"}, {"type": "uts"}, {"type": "cgroup"},
        {"type": "network", "path": "/proc/self/ns/net"}, {"type": "ipc", "path": "/proc/self/ns/ipc"}]),
    );
    let ours = |kind| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().to_str().unwrap().to_owned();
    assert_eq!(bundle.run().text(), format!("{}\n{}", ours("net"), ours("ipc")));
    bundle.set("/linux/namespaces/-", json!({"type": "time", "path": "/proc/self/ns/net"}));
    assert!(bundle.run().refusal().contains("another kind"));
}

#[test]
fn a_user_namespace_maps_its_ids() {
    let mut bundle = Bundle::new(
        "id -u; cat /proc/self/uid_map; cat /proc/self/oom_score_adj; ulimit -n; echo x > /dev/null && stat -c %t:%T /dev/null; touch /tmp/made",
    );
    bundle.set("/linux/namespaces/-", json!({"type": "user"}));
    bundle.set("/linux/uidMappings", json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]));
    bundle.set("/linux/gidMappings", json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]));
    bundle.set("/process/oomScoreAdj", json!(200));
    bundle.set("/process/rlimits", json!([{"type": "RLIMIT_NOFILE", "soft": 300, "hard": 300}]));
    std::os::unix::fs::chown(bundle.rootfs(), Some(100_000), Some(100_000)).unwrap();
    for directory in ["dev", "tmp", "proc", "sys"] {
        std::os::unix::fs::chown(bundle.rootfs().join(directory), Some(100_000), Some(100_000)).unwrap();
    }
    let outcome = bundle.run();
    let lines: Vec<&str> = outcome.text().lines().map(str::trim).collect();
    assert_eq!(lines[0], "0");
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["0", "100000", "65536"]);
    assert_eq!(lines[2..], ["200", "300", "1:3"]);
    let made = fs::metadata(bundle.rootfs().join("tmp/made")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), 100_000);
    assert_eq!(
        bundle.exec(support::process("id -u; readlink /proc/self/ns/user > /dev/null && echo in")).text(),
        "0\nin"
    );
}
