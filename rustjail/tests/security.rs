//! Flaws other runtimes had, one test each; those that are races are in `races`, those about descriptors,
//! devices and links also in `isolation`, `process` and `launch`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use serde_json::json;
use support::{Bundle, process};

fn all_capabilities(bundle: &mut Bundle, names: &[&str]) {
    for set in ["bounding", "effective", "permitted"] {
        bundle.set(&format!("/process/capabilities/{set}"), json!(names));
    }
}

/// CVE-2019-5736
#[test]
fn the_runtimes_own_program_cannot_be_written_from_inside() {
    let launcher = env!("CARGO_BIN_EXE_rustjail-test-launcher");
    let before = fs::read(launcher).unwrap();
    // A script whose interpreter is "whatever runs it", and an init that is asked for its program by an exec.
    let mut bundle = Bundle::new("true");
    let script = bundle.rootfs().join("bin/evil");
    fs::write(&script, "#!/proc/self/exe\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    bundle.set("/process/args", json!(["/bin/evil"]));
    let outcome = bundle.run();
    assert!(outcome.code != 0, "{outcome:?}");

    let mut bundle = Bundle::new("");
    all_capabilities(&mut bundle, &["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"]);
    let mut writer =
        process("for p in /proc/[0-9]*; do readlink $p/exe; echo x >> $p/exe; done 2>/dev/null | sort -u");
    writer["capabilities"] = bundle.spec["process"]["capabilities"].clone();
    let outcome = bundle.exec(writer);
    assert_eq!(outcome.text(), "/bin/busybox");
    assert!(fs::read(launcher).unwrap() == before);
}

/// CVE-2019-16884, CVE-2025-52881
#[test]
fn settings_never_go_through_the_proc_of_an_image() {
    let mut bundle = Bundle::new("cat /proc/self/oom_score_adj");
    let fake = bundle.rootfs().join("proc");
    fs::create_dir_all(fake.join("self/attr")).unwrap();
    fs::create_dir_all(fake.join("sys/kernel")).unwrap();
    for file in ["self/oom_score_adj", "self/timens_offsets", "sys/kernel/shmmni"] {
        fs::write(fake.join(file), "fake").unwrap();
    }
    bundle.spec["mounts"].as_array_mut().unwrap().retain(|mount| mount["destination"] != "/proc");
    bundle.set("/linux/maskedPaths", json!([])).set("/linux/readonlyPaths", json!([]));
    bundle.set("/linux/sysctl", json!({"kernel.shmmni": "77"}));
    bundle.set("/process/oomScoreAdj", json!(99));
    bundle.set("/linux/namespaces/-", json!({"type": "time"}));
    bundle.set("/linux/timeOffsets", json!({"boottime": {"secs": 1}}));
    assert_eq!(bundle.run().text(), "fake");
    for file in ["self/oom_score_adj", "self/timens_offsets", "sys/kernel/shmmni"] {
        assert_eq!(fs::read_to_string(fake.join(file)).unwrap(), "fake", "{file}");
    }
}

/// Who shares the root file system renames the directories that procfs and sysfs are on, once they are: the mounts
/// go with them, and so do their masks.
#[test]
fn masks_are_put_into_the_mount_and_not_at_its_name() {
    let mut bundle = Bundle::new(
        "stat -c %t:%T /moved/version; ls -A /movedsys/firmware; echo x 2>&1 > /moved/sys/kernel/shmmni; \
         grep -c ' /moved/sys ro,' /moved/self/mountinfo; touch /movedsys/kernel/x 2>&1",
    );
    bundle.set("/linux/maskedPaths/-", json!("/proc/version"));
    bundle.set("/linux/readonlyPaths/-", json!("/sys/kernel"));
    let rootfs = bundle.rootfs();
    let script = "cd $0; mv proc moved; mv sys movedsys; mkdir -p proc/sys sys/firmware; touch proc/version";
    let hook = json!([{"path": "/bin/sh", "args": ["sh", "-ec", script, rootfs]}]);
    bundle.set("/hooks", json!({"createRuntime": hook}));
    let outcome = bundle.run();
    let read_only = "Read-only file system";
    let expected = format!(
        "1:3\nsh: can't create /moved/sys/kernel/shmmni: {read_only}\n1\ntouch: /movedsys/kernel/x: {read_only}"
    );
    assert_eq!(outcome.stdout, expected, "{outcome:?}");
}

/// CVE-2019-16884: what a write to procfs goes through cannot be covered by a mount either.
#[test]
fn nothing_can_be_put_over_the_files_that_labels_are_written_to() {
    for destination in [
        "/proc/self/attr",
        "/proc/self/attr/exec",
        "/proc/thread-self/attr",
        "/proc/sys",
        "/proc/sysrq-trigger",
    ] {
        let mut bundle = Bundle::new("true");
        bundle.set(
            "/mounts/-",
            json!({"destination": destination, "source": "/dev/null", "options": ["bind"]}),
        );
        assert!(bundle.run().refusal().contains("nothing may be mounted there"), "{destination}");
    }
    let mut bundle = Bundle::new("true");
    bundle.spec["mounts"][0] = json!({"destination": "/proc", "type": "tmpfs", "source": "x"});
    assert!(bundle.run().refusal().contains("has to be of the type proc"));
}

/// CVE-2022-24769, CVE-2022-29162, CVE-2025-27612
#[test]
fn nothing_is_inheritable_unless_it_is_asked_for() {
    let script = "grep -E 'Cap(Inh|Amb)' /proc/self/status | awk '{ print $2 }'";
    let none = "0000000000000000\n0000000000000000";
    let mut bundle = Bundle::new(script);
    assert_eq!(bundle.run().text(), none);
    assert_eq!(bundle.exec(process(script)).text(), none);
    let mut bundle = Bundle::new(script);
    assert_eq!(bundle.in_user_namespace().run().text(), none);
    assert_eq!(bundle.exec(process(script)).text(), none);
}

/// CVE-2023-25809
#[test]
fn without_a_cgroup_namespace_the_machines_groups_are_read_only_in_a_user_namespace() {
    for kind in ["cgroup", "cgroup2"] {
        let mut bundle = Bundle::new(
            "grep -E ' /sys/fs/cgroup' /proc/self/mountinfo | awk '{ print $6 }' | cut -d, -f1 | sort -u",
        );
        bundle.spec["linux"]["namespaces"]
            .as_array_mut()
            .unwrap()
            .retain(|namespace| namespace["type"] != "cgroup");
        bundle.set("/mounts/-", json!({"destination": "/sys/fs/cgroup", "type": kind, "source": "cgroup"}));
        assert_eq!(bundle.run().text(), "rw", "{kind}");
        assert_eq!(bundle.in_user_namespace().run().text(), "ro", "{kind}");
    }
}

/// CVE-2022-0492
#[test]
fn without_privileges_no_control_groups_can_be_mounted_and_no_agent_named() {
    let mut bundle = Bundle::new(
        "mkdir /tmp/c; for t in cgroup cgroup2; do mount -t $t x /tmp/c 2>/dev/null && echo mounted $t; done; \
         for f in /sys/fs/cgroup/*/release_agent; do echo x 2>/dev/null > $f && echo wrote $f; done; echo done",
    );
    bundle.set(
        "/mounts/-",
        json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]}),
    );
    let outcome = bundle.run();
    assert_eq!(outcome.text(), "done", "{outcome:?}");
}

/// CVE-2025-52565, CVE-2026-88265
#[test]
fn a_terminal_comes_from_a_devpts_and_from_nothing_an_image_puts_there() {
    for (target, file) in [("/dev/zero", false), ("/proc/sysrq-trigger", false), ("", true)] {
        let mut bundle = Bundle::new("true");
        let pts = bundle.rootfs().join("dev/pts");
        fs::create_dir_all(&pts).unwrap();
        match file {
            true => fs::write(pts.join("ptmx"), "").unwrap(),
            false => symlink(target, pts.join("ptmx")).unwrap(),
        }
        bundle.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
        bundle.set("/process/terminal", json!(true));
        let outcome = bundle.run();
        assert!(outcome.refusal().contains("terminal multiplexer"), "{outcome:?}");
    }
    // A console that is a link in the image is not followed.
    let mut bundle = Bundle::new("true");
    fs::write(bundle.rootfs().join("victim"), "").unwrap();
    symlink("/victim", bundle.rootfs().join("dev/console")).unwrap();
    bundle.spec["mounts"].as_array_mut().unwrap().retain(|mount| mount["destination"] != "/dev");
    bundle.set("/process/terminal", json!(true));
    let outcome = bundle.run();
    assert!(outcome.refusal().contains("no symbolic link is allowed, /dev/console"), "{outcome:?}");
}

/// CVE-2020-28914
/// Row A5 of the reliability tests.
#[test]
fn a_read_only_volume_is_read_only_for_each_who_shares_it() {
    let volume = std::env::temp_dir().join(format!("rustjail-volume-{}", std::process::id()));
    fs::create_dir_all(&volume).unwrap();
    for user in [false, true] {
        let script =
            "touch /data/x 2>&1; mount -o remount,rw,bind /data 2>/dev/null; touch /data/x 2>&1; true";
        let mut bundle = Bundle::new(script);
        bundle.set(
            "/mounts/-",
            json!({"destination": "/data", "source": volume, "options": ["rbind", "rro", "nosuid"]}),
        );
        if user {
            // Root of its own namespaces, which is not enough to lift what was given with the mount.
            all_capabilities(&mut bundle, &["CAP_SYS_ADMIN"]);
            bundle.in_user_namespace();
        }
        let refused = "touch: /data/x: Read-only file system";
        let outcome = bundle.run();
        if user {
            assert!(!volume.join("x").exists(), "{outcome:?}");
        } else {
            assert_eq!(outcome.text(), format!("{refused}\n{refused}"));
        }
    }
    fs::remove_dir_all(volume).unwrap();
}

/// CVE-2025-54867: a root file system that is a link is looked up once, and cannot be told from what it means.
#[test]
fn a_root_that_is_a_link_is_what_it_points_to() {
    let bundle = Bundle::new("cat /etc/passwd | wc -l");
    fs::rename(bundle.rootfs(), bundle.path.join("real")).unwrap();
    symlink("real", bundle.rootfs()).unwrap();
    assert_eq!(bundle.run().text(), "2");
    fs::remove_file(bundle.rootfs()).unwrap();
}

/// CVE-2024-40635, CVE-2026-30892, CVE-2026-46680
#[test]
fn ids_beyond_the_last_are_refused_everywhere() {
    let last = u32::MAX;
    for (pointer, value) in [
        ("/process/user", json!({"uid": last, "gid": 0})),
        ("/process/user", json!({"uid": 0, "gid": last})),
        ("/process/user", json!({"uid": 0, "gid": 0, "additionalGids": [last]})),
        ("/linux/devices", json!([{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "uid": last}])),
        ("/linux/devices", json!([{"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "gid": last}])),
    ] {
        let mut bundle = Bundle::new("true");
        bundle.set(pointer, value.clone());
        assert!(bundle.run().refusal().contains("4294967295 is reserved"), "{value}");
    }
    for user in [
        json!({"uid": 4_294_967_296_u64, "gid": 0}),
        json!({"uid": -1, "gid": 0}),
        json!({"uid": "1", "gid": 0}),
    ] {
        let mut bundle = Bundle::new("true");
        bundle.set("/process/user", user.clone());
        bundle.run().refusal();
    }
}

/// A row of the table whose test was renamed would be a row without a test.
#[test]
fn every_flaw_in_the_table_has_the_tests_it_names() {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut code = String::new();
    for folder in ["rustjail/src", "rustjail/tests", "agent/src", "agent/tests", "tests"] {
        append_sources(&top.join(folder), &mut code);
    }
    let table = fs::read_to_string(top.join("docs/security.md")).unwrap();
    let named = table.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let names: Vec<&str> =
        named.flat_map(|line| line.rsplit('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 30);
    for name in names {
        assert!(code.contains(&format!("fn {name}()")), "docs/security.md names {name}, which is no test");
    }
}

fn append_sources(folder: &std::path::Path, code: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            append_sources(&path, code);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}
