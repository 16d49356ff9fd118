//! Hooks: where each kind runs, what it is told, and what its failure means.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;

use serde_json::{Value, json};
use support::Bundle;

const KINDS: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

fn hook(script: &str) -> Value {
    json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin:/usr/bin"], "timeout": 30})
}

/// A bundle in which each of `KINDS` runs `script`, with KIND and LOG set. The log is in the container as well.
fn with_hooks(script: &str, of: impl Fn(&str) -> String) -> Bundle {
    let mut bundle = Bundle::new(script);
    let log = bundle.path.join("log");
    fs::write(&log, "").unwrap();
    // A hook runs as the container's user where it runs in the container.
    fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    fs::create_dir_all(bundle.rootfs().join(log.parent().unwrap().strip_prefix("/").unwrap())).unwrap();
    let (source, destination) = (log.clone(), log.clone());
    bundle.set("/mounts/-", json!({"destination": destination, "source": source, "options": ["bind"]}));
    bundle.set("/hooks", json!({}));
    bundle.set("/annotations", json!({"a.key": "a value"}));
    for kind in KINDS {
        let script = format!("KIND={kind}; LOG={}; {}", log.display(), of(kind));
        bundle.set(&format!("/hooks/{kind}"), json!([hook(&script)]));
    }
    bundle
}

fn log(bundle: &Bundle) -> Vec<String> {
    fs::read_to_string(bundle.path.join("log")).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn they_run_in_the_order_of_a_containers_life() {
    for user in [false, true] {
        let mut bundle = with_hooks("sleep 0.1", |_| "echo $KIND >> $LOG".into());
        if user {
            bundle.in_user_namespace();
        }
        bundle.run().text();
        assert_eq!(log(&bundle), KINDS);
    }
}

#[test]
fn they_are_told_the_state_as_it_is_where_they_run() {
    let bundle = with_hooks("sleep 0.1", |_| "{ cat; echo; } >> $LOG".into());
    bundle.run().text();
    let states: Vec<Value> = log(&bundle).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let status = ["creating", "creating", "creating", "created", "running", "stopped"];
    for ((state, status), kind) in states.iter().zip(status).zip(KINDS) {
        assert_eq!(state["ociVersion"], "1.0.2", "{kind}");
        assert_eq!(state["id"], "test", "{kind}");
        assert_eq!(state["status"], status, "{kind}");
        assert_eq!(state["bundle"], bundle.path.to_str().unwrap(), "{kind}");
        assert_eq!(state["annotations"], json!({"a.key": "a value"}), "{kind}");
        match kind {
            "createContainer" | "startContainer" => assert_eq!(state["pid"], 1, "{kind}"),
            "poststop" => assert_eq!(state["pid"], Value::Null),
            _ => assert!(state["pid"].as_i64().unwrap() > 1, "{kind}"),
        }
    }
    assert_eq!(states.len(), 6);
}

#[test]
fn each_kind_runs_in_its_namespaces_and_sees_its_root() {
    let bundle = with_hooks("sleep 0.1", |_| {
        "echo $(readlink /proc/self/ns/mnt) $(hostname) $([ -e /etc/passwd- -o -d /usr ] && echo outer) >> $LOG".into()
    });
    let outcome = bundle.run();
    outcome.text();
    let lines = log(&bundle);
    let ours = fs::read_link("/proc/self/ns/mnt").unwrap();
    let here = |line: &String| line.starts_with(ours.to_str().unwrap());
    // createContainer: the container's namespaces with the machine's paths; startContainer: both the container's.
    assert_eq!(
        lines.iter().map(|line| (here(line), line.ends_with("outer"))).collect::<Vec<_>>(),
        [(true, true), (true, true), (false, true), (false, false), (true, true), (true, true)],
        "{lines:?} {outcome:?}"
    );
    assert!(lines[2].contains(" jail") && lines[3].contains(" jail"), "{lines:?}");
}

#[test]
fn hooks_of_the_creation_find_the_containers_mounts_at_the_path_of_its_root() {
    let mut bundle = Bundle::new("cat /dev/shm/left /masked 2>&1");
    let rootfs = bundle.rootfs();
    fs::write(rootfs.join("masked"), "").unwrap();
    bundle.set("/linux/maskedPaths", json!(["/masked"]));
    bundle.set("/root/readonly", json!(true));
    let (dir, script) = (rootfs.display(), "echo from the hook");
    let script = format!("{script} > {dir}/dev/shm/left; {script} > {dir}/masked; {script} > {dir}/new");
    bundle.set("/hooks", json!({"createContainer": [hook(&script)]}));
    // What it wrote is there, and what is masked is masked all the same.
    assert_eq!(bundle.run().text(), "from the hook");
    assert!(rootfs.join("new").exists() && !rootfs.join("dev/shm").exists());
}

#[test]
fn a_hook_without_an_environment_has_the_programs() {
    let mut bundle = Bundle::new("cat /tmp/env");
    bundle.set("/process/env", json!(["PATH=/bin", "ONLY=here"]));
    let script = "echo $ONLY $EXTRA $(id -u) >> /tmp/env";
    let explicit =
        json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin", "EXTRA=given"]});
    let inherited = json!({"path": "/bin/sh", "args": ["sh", "-c", script]});
    bundle.set("/hooks", json!({"startContainer": [explicit, inherited]}));
    bundle.set("/process/user", json!({"uid": 33, "gid": 33}));
    fs::set_permissions(bundle.rootfs().join("tmp"), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    assert_eq!(bundle.run().text(), "given 33\nhere 33");
}

#[test]
fn a_failure_ends_the_step_it_belongs_to_and_poststop_runs_all_the_same() {
    let last = |kind: &str| KINDS.iter().position(|other| *other == kind).unwrap();
    for kind in &KINDS[..5] {
        let bundle = with_hooks("touch /tmp/ran; sleep 60", |this| {
            let end = if this == *kind { "echo it is broken; exit 4" } else { "exit 0" };
            // The program is ended by its poststart hook, which must not come before it has begun.
            let ran = if this == "poststart" {
                "until [ -e ${LOG%log}rootfs/tmp/ran ]; do sleep 0.01; done;"
            } else {
                ""
            };
            format!("echo $KIND >> $LOG; {ran} {end}")
        });
        let outcome = bundle.run();
        let text = outcome.refusal();
        assert!(
            text.contains(&format!("the {kind} hook /bin/sh failed with exit status: 4: it is broken")),
            "{text}"
        );
        let expected: Vec<&str> = KINDS[..=last(kind)].iter().chain(["poststop"].iter()).copied().collect();
        assert_eq!(log(&bundle), expected, "{kind}");
        assert_eq!(bundle.rootfs().join("tmp/ran").exists(), *kind == "poststart", "{kind}");
    }
}

#[test]
fn a_failed_poststop_hook_stops_neither_the_others_nor_the_end() {
    let mut bundle = with_hooks("exit 3", |_| "exit 0".into());
    let failing = json!({"path": "/nowhere/hook"});
    let good = bundle.spec["hooks"]["prestart"][0].clone();
    let mut good = good;
    good["args"][2] = json!(format!("echo ran > {}", bundle.path.join("log").display()));
    bundle.set("/hooks/poststop", json!([failing, good]));
    let outcome = bundle.run();
    assert_eq!(outcome.code, 3);
    assert!(
        outcome.stderr.contains("the poststop hook /nowhere/hook cannot be run: No such file"),
        "{outcome:?}"
    );
    assert_eq!(log(&bundle), ["ran"]);
}

#[test]
fn a_hook_that_takes_too_long_is_killed() {
    for kind in ["createRuntime", "createContainer", "startContainer"] {
        let mut bundle = Bundle::new("true");
        let mut slow = hook("while :; do sleep 1; done");
        slow["timeout"] = json!(1);
        bundle.set("/hooks", json!({kind: [slow]}));
        let outcome = bundle.run();
        assert!(outcome.refusal().contains("was killed, because it was not done within 1 s"), "{outcome:?}");
    }
}

#[test]
fn nothing_but_the_standard_streams_is_open_in_a_hook() {
    let bundle = with_hooks("sleep 0.1", |_| "echo $(ls /proc/self/fd) >> $LOG".into());
    bundle.run().text();
    assert!(log(&bundle).iter().all(|line| line == "0 1 2 3"), "{:?}", log(&bundle));
}

#[test]
fn a_hook_that_could_never_run_fails_the_creation() {
    for kind in KINDS {
        let mut bundle = Bundle::new("true");
        bundle.set("/hooks", json!({kind: [{"path": "relative"}]}));
        let outcome = bundle.run();
        let text = format!("the {kind} hook relative is not named by an absolute path");
        assert!(outcome.refusal().starts_with(&text), "{outcome:?}");
    }
}
