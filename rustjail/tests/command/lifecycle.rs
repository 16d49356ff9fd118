//! From state to state, and every way that is closed.

use std::fs;

use crate::jail::{Jail, ends};

#[test]
fn every_state_in_turn() {
    let jail = Jail::sleeping();
    jail.refused(&["state", "c"], 1, "does not exist");
    assert_eq!(jail.ok(&["create", "c"]), "");
    assert_eq!(jail.status("c"), "created");
    jail.ok(&["start", "c"]);
    assert_eq!(jail.status("c"), "running");
    jail.ok(&["pause", "c"]);
    assert_eq!(jail.status("c"), "paused");
    jail.ok(&["resume", "c"]);
    assert_eq!(jail.status("c"), "running");
    let pid = jail.pid("c");
    jail.ok(&["kill", "c", "KILL"]);
    assert!(ends(pid));
    let state = jail.state("c");
    assert_eq!((state["status"].as_str(), state["pid"].as_i64()), (Some("stopped"), Some(0)));
    jail.ok(&["delete", "c"]);
    jail.refused(&["state", "c"], 1, "does not exist");
    assert_eq!(fs::read_dir(&jail.root).unwrap().count(), 0);
}

#[test]
fn state_tells_what_was_made() {
    let mut jail = Jail::sleeping();
    jail.bundle.set("/annotations", serde_json::json!({"a.b/c": "d"}));
    jail.ok(&["create", "c"]);
    let state = jail.state("c");
    assert_eq!(state["ociVersion"], "1.0.2");
    assert_eq!(state["id"], "c");
    assert_eq!(state["bundle"], jail.bundle.path.to_str().unwrap());
    assert_eq!(state["annotations"]["a.b/c"], "d");
    assert!(fs::exists(format!("/proc/{}", state["pid"])).unwrap());
}

#[test]
fn a_created_container_runs_nothing_before_its_start() {
    let jail = Jail::new("touch /started; sleep 1000");
    let started = jail.bundle.rootfs().join("started");
    jail.ok(&["create", "c"]);
    assert!(!started.exists());
    jail.ok(&["start", "c"]);
    assert!(crate::jail::eventually(|| started.exists()));
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let jail = Jail::sleeping();
    jail.ok(&["create", "c"]);
    jail.refused(&["create", "c"], 1, "already exists");
    jail.refused(&["resume", "c"], 1, "not paused");
    assert_eq!(jail.status("c"), "created");
    jail.ok(&["start", "c"]);
    jail.refused(&["start", "c"], 1, "already running");
    jail.refused(&["delete", "c"], 1, "not stopped");
    jail.refused(&["kill", "c", "NOSUCH"], 1, "unknown signal");
    jail.ok(&["pause", "c"]);
    jail.refused(&["start", "c"], 1, "paused");
    jail.refused(&["delete", "c"], 1, "not stopped");
    jail.refused(&["exec", "c", "true"], 255, "paused container");
    jail.ok(&["resume", "c"]);
    assert_eq!(jail.status("c"), "running");
    let pid = jail.pid("c");
    jail.ok(&["kill", "c", "9"]);
    assert!(ends(pid));
    jail.refused(&["kill", "c", "KILL"], 1, "container not running");
    jail.refused(&["start", "c"], 1, "has stopped");
    jail.refused(&["pause", "c"], 1, "not running");
    jail.refused(&["exec", "c", "true"], 255, "stopped container");
    jail.ok(&["delete", "c"]);
    jail.ok(&["delete", "--force", "c"]);
}

#[test]
fn an_id_is_a_plain_name() {
    let jail = Jail::sleeping();
    for id in ["", "..", "a/b", "/", "a b", "ä"] {
        jail.refused(&["create", id], 1, "invalid container ID");
    }
    jail.refused(&["create", &"x".repeat(256)], 1, "invalid container ID");
    jail.refused(&["create"], 1, "takes");
    jail.ok(&["create", "A-b_c+1.2"]);
}

#[test]
fn delete_with_force_ends_a_container_in_any_state() {
    let jail = Jail::sleeping();
    for steps in [&["create"][..], &["create", "start"], &["create", "start", "pause"]] {
        for step in steps {
            jail.ok(&[step, "c"]);
        }
        let pid = jail.pid("c");
        jail.ok(&["delete", "-f", "c"]);
        assert!(ends(pid), "{steps:?}");
        jail.refused(&["state", "c"], 1, "does not exist");
    }
}

#[test]
fn run_answers_as_the_program_ended_and_leaves_nothing() {
    let jail = Jail::new("cat; echo out; echo err >&2; exit 7");
    let outcome = jail.call(&["run", "c"]);
    assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (7, "out", "err"));
    assert_eq!(jail.ok(&["list", "-q"]), "");
    let jail = Jail::new("kill -9 $$");
    // The init of a PID namespace is not killed by itself.
    assert_eq!(jail.call(&["run", "c"]).code, 0);
}

#[test]
fn a_program_that_is_missing_fails_the_creation() {
    let mut jail = Jail::sleeping();
    jail.bundle.set("/process/args", serde_json::json!(["nosuch"]));
    for verb in ["create", "run"] {
        jail.refused(&[verb, "c"], 1, "nosuch: No such file or directory");
        assert_eq!(jail.ok(&["list", "-q"]), "");
    }
}

#[test]
fn a_program_that_cannot_be_executed_fails_the_start() {
    let mut jail = Jail::sleeping();
    let script = jail.bundle.rootfs().join("bin/odd");
    fs::write(&script, "#!/no/interpreter\n").unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    jail.bundle.set("/process/args", serde_json::json!(["odd"]));
    jail.ok(&["create", "c"]);
    jail.refused(&["start", "c"], 1, "/bin/odd: No such file or directory");
    assert_eq!(jail.status("c"), "stopped");
    jail.ok(&["delete", "c"]);
}

#[test]
fn list_shows_all_of_them() {
    let jail = Jail::sleeping();
    assert_eq!(jail.ok(&["list"]).split_whitespace().collect::<Vec<_>>().len(), 6);
    jail.ok(&["create", "c"]);
    assert_eq!(jail.ok(&["list", "-q"]), "c");
    let list: serde_json::Value = serde_json::from_str(&jail.ok(&["list", "--format", "json"])).unwrap();
    assert_eq!((list[0]["id"].as_str(), list[0]["status"].as_str()), (Some("c"), Some("created")));
    assert_eq!(list[0]["owner"], "root");
    let table = jail.ok(&["list"]);
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[2]), ("c", "created"));
}
