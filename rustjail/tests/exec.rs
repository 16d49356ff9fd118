//! One more process in a running container.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::json;
use support::{Bundle, process};

#[test]
fn it_is_in_every_namespace_of_the_init() {
    let script = "for n in mnt pid net ipc uts cgroup; do \
                  [ $(readlink /proc/self/ns/$n) = $(readlink /proc/1/ns/$n) ] || echo other $n; done; hostname; \
                  cat /proc/1/comm";
    let mut bundle = Bundle::new("");
    let mut process = process(script);
    process["capabilities"]["effective"] = json!(["CAP_SYS_PTRACE"]);
    process["capabilities"]["permitted"] = json!(["CAP_SYS_PTRACE"]);
    process["capabilities"]["bounding"] = json!(["CAP_SYS_PTRACE"]);
    assert_eq!(bundle.exec(process).text(), "jail\nsleep");
}

#[test]
fn what_it_omits_comes_from_the_containers_process() {
    let mut bundle = Bundle::new("");
    bundle.set("/process/rlimits", json!([{"type": "RLIMIT_NOFILE", "soft": 88, "hard": 88}]));
    bundle.set("/process/oomScoreAdj", json!(111));
    let mut process =
        process("ulimit -n; cat /proc/self/oom_score_adj; grep -E 'Cap(Inh|Eff)|NoNew' /proc/self/status");
    process.as_object_mut().unwrap().remove("capabilities");
    process.as_object_mut().unwrap().remove("noNewPrivileges");
    assert_eq!(
        bundle.exec(process).text(),
        "88\n111\nCapInh:\t0000000000000000\nCapEff:\t0000000000000420\nNoNewPrivs:\t0"
    );
}

#[test]
fn only_the_standard_streams_are_open() {
    assert_eq!(Bundle::new("").exec(process("ls /proc/self/fd")).text(), "0\n1\n2\n3");
}

#[test]
fn its_working_directory_lies_inside() {
    let mut bundle = Bundle::new("");
    let mut process = process("pwd");
    process["cwd"] = json!("/tmp");
    assert_eq!(bundle.exec(process.clone()).text(), "/tmp");
    // CVE-2024-21626: whatever number it might be.
    let numbers = (0..64).map(|number| format!("/proc/self/fd/{number}"));
    for cwd in numbers.chain(["/proc/1/root", "/proc/self/cwd", "/nosuch"].map(str::to_owned)) {
        process["cwd"] = json!(cwd);
        let outcome = bundle.exec(process.clone());
        assert!(outcome.refusal().contains("open the working directory"), "{outcome:?}");
    }
}

#[test]
fn a_missing_program_is_named() {
    let mut process = process("");
    process["args"] = json!(["nosuch"]);
    assert_eq!(
        Bundle::new("").exec(process).refusal(),
        "start: cannot find the program nosuch: No such file or directory (os error 2)"
    );
}

#[test]
fn it_can_have_a_terminal() {
    let mut process = process("tty; stty size; readlink /proc/self/fd/2");
    process["terminal"] = json!(true);
    process["consoleSize"] = json!({"height": 20, "width": 70});
    let mut bundle = Bundle::new("");
    let outcome = bundle.exec(process);
    assert_eq!(outcome.text().replace('\r', ""), "/dev/pts/0\n20 70\n/dev/pts/0");
}

#[test]
fn its_exit_status_comes_through() {
    assert_eq!(Bundle::new("").exec(process("exit 9")).code, 9);
    assert_eq!(Bundle::new("").exec(process("kill -9 $$")).code, 137);
}
