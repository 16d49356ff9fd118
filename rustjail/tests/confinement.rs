//! The seccomp filter is in force in the program, with and without the right to gain privileges.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::{Value, json};
use support::{Bundle, process};

fn deny(names: &[&str]) -> Value {
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": 93}],
    })
}

const SCRIPT: &str = "mkdir /tmp/x; grep -E 'Seccomp:|CapEff|CapPrm|CapAmb|NoNewPrivs' /proc/self/status";

#[test]
fn with_no_new_privileges_nothing_but_execve_comes_after_it() {
    let mut bundle = Bundle::new(SCRIPT);
    // What is denied here is what a filter that was installed any earlier would stumble over.
    bundle.set(
        "/linux/seccomp",
        deny(&["mkdir", "mkdirat", "capset", "prctl", "setresuid", "fchdir", "recvmsg"]),
    );
    let outcome = bundle.run();
    assert_eq!(
        outcome.text(),
        "CapPrm:\t0000000000000420\nCapEff:\t0000000000000420\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2"
    );
    assert!(outcome.stderr.contains("Protocol not supported"), "{outcome:?}");
}

#[test]
fn without_it_the_privilege_to_filter_is_not_kept() {
    for uid in [0, 33] {
        let mut bundle = Bundle::new(SCRIPT);
        bundle.set("/process/noNewPrivileges", json!(false));
        bundle.set("/process/user", json!({"uid": uid, "gid": uid}));
        for set in ["inheritable", "ambient"] {
            bundle.set(&format!("/process/capabilities/{set}"), json!(["CAP_KILL"]));
        }
        bundle.set("/linux/seccomp", deny(&["mkdir", "mkdirat", "setresuid", "fchdir", "recvmsg"]));
        let outcome = bundle.run();
        let caps = if uid == 0 { "0000000000000420" } else { "0000000000000020" };
        let ambient = "0000000000000020";
        assert_eq!(
            outcome.text(),
            format!("CapPrm:\t{caps}\nCapEff:\t{caps}\nCapAmb:\t{ambient}\nNoNewPrivs:\t0\nSeccomp:\t2")
        );
        assert!(outcome.stderr.contains("Protocol not supported"), "{outcome:?}");
    }
}

#[test]
fn a_filter_that_forbids_execve_is_reported() {
    let mut bundle = Bundle::new("true");
    bundle.set("/linux/seccomp", deny(&["execve", "sendmsg"]));
    assert!(bundle.run().refusal().starts_with("start: cannot execute /bin/sh: Protocol not supported"));
}

#[test]
fn an_exec_has_the_containers_filter() {
    let mut bundle = Bundle::new("");
    bundle.set("/linux/seccomp", deny(&["mkdir", "mkdirat"]));
    let outcome = bundle.exec(process("mkdir /tmp/x; grep Seccomp: /proc/self/status"));
    assert_eq!(outcome.text(), "Seccomp:\t2");
}
