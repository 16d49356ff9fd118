//! What a program finds itself to be: ids, privileges, limits, environment, descriptors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::json;
use support::Bundle;

/// A field of /proc/self/status.
fn field(status: &str, name: &str) -> String {
    let line =
        status.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {status}"));
    line.split_once(':').unwrap().1.trim().to_owned()
}

#[test]
fn capabilities_are_exactly_those_asked_for() {
    let outcome = Bundle::new("cat /proc/self/status").run();
    let status = outcome.text();
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(field(status, set), "0000000000000420", "{set}");
    }
    assert_eq!(field(status, "CapInh"), "0000000000000000");
    assert_eq!(field(status, "CapAmb"), "0000000000000000");
    assert_eq!(field(status, "NoNewPrivs"), "1");
}

#[test]
fn a_user_keeps_only_ambient_capabilities_over_execve() {
    let mut bundle = Bundle::new("cat /proc/self/status");
    bundle.set("/process/user", json!({"uid": 33, "gid": 34, "additionalGids": [5, 7]}));
    let caps = json!(["CAP_KILL"]);
    for set in ["inheritable", "ambient"] {
        bundle.set(&format!("/process/capabilities/{set}"), caps.clone());
    }
    let outcome = bundle.run();
    let status = outcome.text();
    assert_eq!(field(status, "Uid"), "33\t33\t33\t33");
    assert_eq!(field(status, "Gid"), "34\t34\t34\t34");
    assert_eq!(field(status, "Groups"), "5 7");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(status, set), "0000000000000020", "{set}");
    }
}

#[test]
fn the_ids_a_process_gets_are_the_ids_asked_for() {
    for uid in [1_u32, 65534, i32::MAX as u32, u32::MAX - 1] {
        let mut bundle = Bundle::new("grep -E '^(Uid|Gid|CapEff|CapPrm)' /proc/self/status");
        bundle.set("/process/user", json!({"uid": uid, "gid": uid}));
        let outcome = bundle.run();
        let want = format!("{uid}\t{uid}\t{uid}\t{uid}");
        assert_eq!((field(outcome.text(), "Uid"), field(outcome.text(), "Gid")), (want.clone(), want));
        assert_eq!(field(outcome.text(), "CapEff"), "0000000000000000");
    }
    let mut bundle = Bundle::new("true");
    bundle.set("/process/user", json!({"uid": u32::MAX, "gid": 0}));
    assert!(bundle.run().refusal().contains("4294967295"));
}

#[test]
fn only_the_standard_streams_are_open() {
    let outcome = Bundle::new("ls /proc/self/fd; cat").run();
    // 3 is the directory that ls itself reads.
    assert_eq!(outcome.text(), "0\n1\n2\n3\ninput");
}

#[test]
fn limits_and_umask_are_set() {
    let mut bundle = Bundle::new("ulimit -Sn; ulimit -Hn; umask; cat /proc/self/oom_score_adj");
    bundle.set("/process/rlimits", json!([{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 99}]));
    bundle.set("/process/oomScoreAdj", json!(321));
    let outcome = bundle.run();
    assert_eq!(outcome.text(), "77\n99\n0022\n321");

    let mut bundle = Bundle::new("umask");
    bundle.set("/process/user/umask", json!(0o077));
    assert_eq!(bundle.run().text(), "0077");
}

#[test]
fn no_signal_is_ignored_or_blocked() {
    let mut bundle = Bundle::new("");
    bundle.set("/process/args", json!(["cat", "/proc/self/status"]));
    let outcome = bundle.run();
    assert_eq!(field(outcome.text(), "SigIgn"), "0000000000000000");
    assert_eq!(field(outcome.text(), "SigBlk"), "0000000000000000");
}

#[test]
fn the_environment_is_the_given_one_and_a_home() {
    let mut bundle = Bundle::new("");
    bundle.set("/process/args", json!(["env"]));
    bundle.set("/process/env", json!(["PATH=/bin", "A= spaces kept ", "B=1", "A=again"]));
    assert_eq!(bundle.run().stdout, "PATH=/bin\nA= spaces kept \nB=1\nA=again\nHOME=/root");
    bundle.set("/process/user", json!({"uid": 33, "gid": 33}));
    assert!(bundle.run().text().ends_with("HOME=/tmp"));
    bundle.set("/process/user", json!({"uid": 4000, "gid": 33}));
    assert!(bundle.run().text().ends_with("HOME=/"));
    bundle.set("/process/env", json!(["PATH=/bin", "HOME=/mine"]));
    assert_eq!(bundle.run().text(), "PATH=/bin\nHOME=/mine");
}

#[test]
fn the_working_directory_is_made_and_lies_inside() {
    let mut bundle = Bundle::new("pwd");
    bundle.set("/process/cwd", json!("/srv/new/dir"));
    assert_eq!(bundle.run().text(), "/srv/new/dir");
    for number in 0..64 {
        bundle.set("/process/cwd", json!(format!("/proc/self/fd/{number}")));
        let outcome = bundle.run();
        assert!(outcome.refusal().starts_with("create: "), "{number} {outcome:?}");
    }
}

#[test]
fn a_missing_program_fails_the_creation_by_name() {
    let mut bundle = Bundle::new("");
    for (program, errno) in [
        ("nosuch", "os error 2"),
        ("/bin/nosuch", "os error 2"),
        ("/etc/passwd", "os error 13"),
        ("/tmp", "os error 13"),
    ] {
        bundle.set("/process/args", json!([program]));
        let outcome = bundle.run();
        let text = outcome.refusal();
        assert!(text.starts_with(&format!("create: cannot find the program {program}: ")), "{text}");
        assert!(text.contains(errno), "{text}");
    }
}

#[test]
fn a_file_that_is_no_program_fails_the_start() {
    let mut bundle = Bundle::new("");
    let path = bundle.rootfs().join("bin/garbage");
    std::fs::write(&path, "\u{7f}nothing").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    bundle.set("/process/args", json!(["garbage"]));
    assert_eq!(bundle.run().refusal(), "start: cannot execute /bin/garbage: Exec format error (os error 8)");
}

#[test]
fn exit_statuses_come_through() {
    assert_eq!(Bundle::new("exit 37").run().code, 37);
    // An init ignores signals of its own namespace that it has no handler for; its child does not.
    assert_eq!(Bundle::new("sh -c 'kill -9 $$'; exit $?").run().code, 137);
}

#[test]
fn a_terminal_is_the_containers_own() {
    let script = "tty; stty size; echo > /dev/console; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; \
                  stat -c %u /dev/pts/0; ls /proc/self/fd; : < /dev/tty && echo controlling; tty < /dev/console";
    let mut bundle = Bundle::new(script);
    bundle.set("/process/terminal", json!(true));
    bundle.set("/process/consoleSize", json!({"height": 33, "width": 101}));
    bundle.set("/process/user", json!({"uid": 33, "gid": 33}));
    let outcome = bundle.run();
    let lines: Vec<&str> = outcome.text().lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[..4], ["/dev/pts/0", "33 101", "all", "33"], "{outcome:?}");
    assert!(lines.contains(&"controlling"), "{outcome:?}");
}

#[test]
fn a_terminal_without_devpts_is_refused() {
    let mut bundle = Bundle::new("true");
    bundle.set("/process/terminal", json!(true));
    bundle.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
    assert!(bundle.run().refusal().contains("terminal multiplexer /dev/pts/ptmx"));
    // A multiplexer of the image's own making.
    std::fs::create_dir_all(bundle.rootfs().join("dev/pts")).unwrap();
    std::fs::write(bundle.rootfs().join("dev/pts/ptmx"), "").unwrap();
    assert!(bundle.run().refusal().contains("No such device"));
}
