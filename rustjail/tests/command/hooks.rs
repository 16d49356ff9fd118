//! Hooks, through the command: which command runs which, and what the failure of one leaves.

use std::{fs, process::Stdio};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::jail::{Jail, ends, eventually, wait};

const KINDS: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// A container whose hook of each kind logs what it is told; those of `failing` fail.
fn jail(failing: &[&str]) -> Jail {
    let mut jail = Jail::sleeping();
    let log = jail.bundle.path.join("log");
    fs::write(&log, "").unwrap();
    // startContainer hooks find it at its place inside.
    fs::create_dir_all(jail.bundle.rootfs().join(jail.bundle.path.strip_prefix("/").unwrap())).unwrap();
    jail.bundle.set("/mounts/-", json!({"destination": log, "source": log, "options": ["bind"]}));
    jail.bundle.set("/hooks", json!({}));
    for kind in KINDS {
        let end = if failing.contains(&kind) { "; echo not so >&2; exit 3" } else { "" };
        let script = format!("{{ printf '{kind} '; cat; echo; }} >> {}{end}", log.display());
        let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin:/usr/bin"]});
        jail.bundle.set(&format!("/hooks/{kind}"), json!([hook]));
    }
    jail
}

/// The kinds that were run, each with its state.
fn log(jail: &Jail) -> Vec<(String, Value)> {
    let text = fs::read_to_string(jail.bundle.path.join("log")).unwrap();
    let parse = |line: &str| {
        let (kind, state) = line.split_once(' ').unwrap();
        (kind.to_owned(), serde_json::from_str(state).unwrap())
    };
    text.lines().map(parse).collect()
}

fn kinds(jail: &Jail) -> Vec<String> {
    log(jail).into_iter().map(|(kind, _)| kind).collect()
}

fn is_gone(jail: &Jail, id: &str) {
    jail.refused(&["state", id], 1, "does not exist");
    assert_eq!(fs::read_dir(&jail.root).unwrap().count(), 0);
}

#[test]
fn each_command_runs_its_own() {
    let jail = jail(&[]);
    jail.ok(&["create", "c"]);
    assert_eq!(kinds(&jail), KINDS[..3]);
    let pid = jail.pid("c");
    jail.ok(&["start", "c"]);
    assert_eq!(kinds(&jail), KINDS[..5]);
    jail.ok(&["kill", "c", "KILL"]);
    assert!(ends(pid));
    assert_eq!(kinds(&jail), KINDS[..5]);
    jail.ok(&["delete", "c"]);
    let log = log(&jail);
    assert_eq!(kinds(&jail), KINDS);
    for (kind, state) in &log {
        assert_eq!(
            (state["id"].as_str(), state["ociVersion"].as_str()),
            (Some("c"), Some("1.0.2")),
            "{kind}"
        );
        assert_eq!(state["bundle"], jail.bundle.path.to_str().unwrap(), "{kind}");
    }
    let told = |kind: &str| log.iter().find(|(logged, _)| logged == kind).unwrap().1["pid"].as_i64();
    assert_eq!(told("createRuntime"), Some(pid.into()));
    assert_eq!(told("poststart"), Some(pid.into()));
}

#[test]
fn run_runs_them_all() {
    let mut jail = jail(&[]);
    jail.bundle.set("/process/args", json!(["true"]));
    jail.ok(&["run", "c"]);
    assert_eq!(kinds(&jail), KINDS);
}

#[test]
fn one_that_fails_before_the_start_undoes_the_creation() {
    for failing in ["prestart", "createRuntime", "createContainer"] {
        for command in ["create", "run"] {
            let jail = jail(&[failing]);
            jail.refused(&[command, "c"], 1, &format!("the {failing} hook /bin/sh failed"));
            is_gone(&jail, "c");
            let position = KINDS.iter().position(|kind| *kind == failing).unwrap();
            assert_eq!(kinds(&jail), [&KINDS[..=position], &["poststop"]].concat());
        }
    }
}

#[test]
fn one_that_fails_at_the_start_ends_the_container() {
    for failing in ["startContainer", "poststart"] {
        let jail = jail(&[failing]);
        jail.ok(&["create", "c"]);
        jail.refused(&["start", "c"], 1, "not so");
        assert!(eventually(|| jail.status("c") == "stopped"), "{failing}");
        jail.ok(&["delete", "c"]);
        assert_eq!(kinds(&jail).last().unwrap(), "poststop");
    }
}

#[test]
fn one_that_fails_after_the_end_is_told_and_changes_nothing() {
    let mut jail = jail(&["poststop"]);
    jail.bundle.set("/process/args", json!(["true"]));
    let messages = jail.path("messages");
    let outcome = jail.call(&["--log", &messages, "--log-format", "json", "run", "c"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    let line: Value = serde_json::from_str(fs::read_to_string(&messages).unwrap().trim()).unwrap();
    assert_eq!(line["level"], "warning");
    assert!(line["msg"].as_str().unwrap().contains("the poststop hook /bin/sh failed"), "{line}");
    is_gone(&jail, "c");
}

#[test]
fn a_run_whose_hook_does_not_end_is_ended_by_a_signal() {
    let mut jail = Jail::sleeping();
    let number = jail.path("number");
    let script = format!("echo $$ > {number}; exec sleep 1000");
    let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin:/usr/bin"]});
    jail.bundle.set("/hooks", json!({"createRuntime": [hook]}));
    let mut running = jail.command(&["run", "c"]).stdout(Stdio::null()).spawn().unwrap();
    let hook = || fs::read_to_string(&number).ok()?.trim().parse().ok();
    assert!(eventually(|| hook().is_some()));
    kill(Pid::from_raw(running.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(wait(&mut running), 128 + libc::SIGINT);
    kill(Pid::from_raw(hook().unwrap()), Signal::SIGKILL).unwrap();
    jail.ok(&["delete", "--force", "c"]);
}
