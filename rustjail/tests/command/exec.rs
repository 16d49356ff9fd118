//! `exec` and its flags.

use std::{fs, process::Stdio};

use serde_json::json;

use crate::{
    jail::{Jail, ends, eventually, wait},
    support,
};

fn running() -> Jail {
    let jail = Jail::sleeping();
    jail.ok(&["run", "--detach", "c"]);
    jail
}

#[test]
fn a_process_runs_and_its_status_is_the_commands() {
    let jail = running();
    assert_eq!(jail.ok(&["exec", "c", "sh", "-c", "echo $0 $1", "-x", "--user"]), "-x --user");
    assert_eq!(jail.call(&["exec", "c", "sh", "-c", "exit 9"]).code, 9);
    assert_eq!(jail.call(&["exec", "c", "sh", "-c", "kill -9 $$"]).code, 137);
    jail.refused(&["exec", "c", "nosuch"], 255, "nosuch: No such file or directory");
    jail.refused(&["exec", "c", "/etc/passwd"], 255, "Permission denied");
    jail.refused(&["exec", "unknown", "true"], 255, "does not exist");
    jail.refused(&["exec", "c"], 255, "needs a command");
}

#[test]
fn flags_change_the_process() {
    let jail = running();
    let at = ["--cwd", "/tmp", "--env", "A=b", "-e", "C=d"];
    let script = ["c", "sh", "-c", "pwd; echo $A$C; echo $LANG"];
    assert_eq!(jail.ok(&[&["exec"], &at[..], &script].concat()), "/tmp\nbd\nC");
    assert_eq!(
        jail.ok(&["exec", "-u", "33:34", "--additional-gids", "7", "c", "id"]),
        "uid=33(web) gid=34 groups=7"
    );
    let effective =
        |cap: &[&str]| jail.ok(&[&["exec"], cap, &["c", "grep", "CapEff", "/proc/self/status"]].concat());
    assert_eq!(effective(&[]), "CapEff:\t0000000000000420");
    assert_eq!(effective(&["--cap", "CAP_CHOWN"]), "CapEff:\t0000000000000421");
    jail.refused(&["exec", "--user", "1x", "c", "true"], 255, "1x");
    jail.refused(&["exec", "--cap", "CAP_NOSUCH", "c", "true"], 255, "CAP_NOSUCH");
}

#[test]
fn a_process_document_takes_the_place_of_flags() {
    let jail = running();
    let path = jail.path("process.json");
    fs::write(&path, support::process("echo $PATH; exit 3").to_string()).unwrap();
    let outcome = jail.call(&["exec", "--process", &path, "c"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (3, "/bin"));
    fs::write(&path, "{").unwrap();
    jail.refused(&["exec", "--process", &path, "c"], 255, "process.json");
}

#[test]
fn a_detached_process_outlives_the_command() {
    let jail = running();
    let pid_file = jail.path("pid");
    jail.ok(&["exec", "-d", "--pid-file", &pid_file, "c", "sleep", "1000"]);
    let pid: i32 = fs::read_to_string(&pid_file).unwrap().parse().unwrap();
    assert!(support::read(format!("/proc/{pid}/cmdline")).starts_with("sleep"));
    let listed = jail.ok(&["ps", "--format", "json", "c"]);
    let mut pids: Vec<i32> = serde_json::from_str(&listed).unwrap();
    let mut expected = vec![pid, jail.pid("c")];
    pids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(pids, expected);
    assert!(jail.ok(&["ps", "c"]).contains("sleep 1000"));
    assert!(jail.ok(&["ps", "c", "-o", "pid,comm"]).contains("sleep"));
    jail.ok(&["delete", "--force", "c"]);
    assert!(ends(pid));
}

#[test]
fn signals_reach_the_process() {
    let jail = running();
    let ready = jail.bundle.rootfs().join("ready");
    for (verb, code) in [("trap 'exit 5' TERM", 5), ("trap '' INT; trap 'exit 6' TERM", 6)] {
        let _ = fs::remove_file(&ready);
        let script = format!("{verb}; touch /ready; while :; do sleep 0.05; done");
        let mut command = jail.command(&["exec", "c", "sh", "-c", &script]);
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        assert!(eventually(|| ready.exists()));
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert_eq!(wait(&mut child), code);
    }
}

#[test]
fn a_paused_container_takes_a_process_when_told_to() {
    let jail = running();
    jail.ok(&["pause", "c"]);
    jail.refused(&["exec", "c", "true"], 255, "--ignore-paused");
    let mut command = jail.command(&["exec", "--ignore-paused", "c", "sh", "-c", "exit 4"]);
    let mut child = command.spawn().unwrap();
    jail.ok(&["resume", "c"]);
    assert_eq!(wait(&mut child), 4);
}

#[test]
fn a_created_container_takes_a_process_too() {
    let jail = Jail::sleeping();
    jail.ok(&["create", "c"]);
    assert_eq!(jail.ok(&["exec", "c", "hostname"]), "jail");
    assert_eq!(jail.status("c"), "created");
}

#[test]
fn seccomp_and_no_new_privileges_hold_for_it() {
    let mut jail = Jail::sleeping();
    jail.bundle.set(
        "/linux/seccomp",
        json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
               "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 77}]}),
    );
    jail.ok(&["run", "-d", "c"]);
    let outcome = jail.call(&["exec", "c", "mkdir", "/tmp/x"]);
    assert!(outcome.code != 0 && outcome.stderr.contains("bad state"), "{outcome:?}");
    assert_eq!(jail.ok(&["exec", "c", "grep", "NoNewPrivs", "/proc/self/status"]), "NoNewPrivs:\t1");
}
