//! Hooks of a host's configuration, run in the guest.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Instant};

use berth_protocols::{agent::CreateSandboxRequest, oci};
use nix::sys::signal::Signal;

use crate::host::{Host, sh, soon};

fn hook(script: &str) -> Vec<oci::Hook> {
    let args = ["sh", "-c", script].map(str::to_owned).to_vec();
    let env = vec!["PATH=/bin:/usr/bin".to_owned()];
    vec![oci::Hook { Path: "/bin/sh".to_owned(), Args: args, Env: env, Timeout: 30, ..Default::default() }]
}

/// Hooks of every kind that write down their name and the state they were told.
fn telling(log: &Path, mut script: impl FnMut(&str) -> String) -> oci::Hooks {
    let mut of = |kind: &str| hook(&format!("echo {kind} $(cat) >> {}; {}", log.display(), script(kind)));
    oci::Hooks {
        Prestart: of("prestart"),
        CreateRuntime: of("createRuntime"),
        CreateContainer: of("createContainer"),
        Poststart: of("poststart"),
        Poststop: of("poststop"),
        ..Default::default()
    }
}

fn kinds(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap();
    text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn each_kind_runs_at_its_step_with_the_containers_state() {
    let host = Host::start().await;
    let log = host.dir.join("hooks");
    let spec = |spec: &mut oci::Spec| spec.Hooks = Some(telling(&log, |_| "true".into())).into();
    host.create_with("c1", sh(&["sh", "-c", "sleep 60"]), spec).await.unwrap();
    assert_eq!(kinds(&log), ["prestart", "createRuntime", "createContainer"]);
    host.start_container("c1").await.unwrap();
    assert_eq!(kinds(&log).last().unwrap(), "poststart");
    host.remove("c1").await.unwrap();
    assert_eq!(kinds(&log).last().unwrap(), "poststop");
    let text = fs::read_to_string(&log).unwrap();
    for (line, status) in text.lines().zip(["creating", "creating", "creating", "running", "stopped"]) {
        assert!(
            line.contains("\"id\":\"c1\"") && line.contains(&format!("\"status\":\"{status}\"")),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_hook_that_fails_fails_its_call_and_leaves_nothing() {
    let host = Host::start().await;
    for broken in ["prestart", "createContainer", "poststart"] {
        let log = host.dir.join(broken);
        let end = |kind: &str| if kind == broken { "echo no >&2; exit 9" } else { "true" }.to_owned();
        let spec = |spec: &mut oci::Spec| spec.Hooks = Some(telling(&log, end)).into();
        let created = host.create_with("c1", sh(&["sh", "-c", "sleep 60"]), spec).await;
        let error = match broken {
            "poststart" => {
                created.unwrap();
                let error = host.start_container("c1").await.unwrap_err();
                assert_eq!(host.wait("c1", "").await.unwrap(), 137, "its program was ended");
                host.remove("c1").await.unwrap();
                error
            }
            _ => created.unwrap_err(),
        };
        let text = format!("the {broken} hook /bin/sh failed with exit status: 9: no");
        assert!(error.to_string().contains(&text), "{error}");
        assert_eq!(kinds(&log).last().unwrap(), "poststop", "{broken}");
        assert!(host.wait("c1", "").await.is_err(), "the id is free again");
    }
}

#[tokio::test]
async fn a_hook_that_runs_long_keeps_nobody_waiting() {
    let host = Host::start().await;
    let gate = host.dir.join("gate");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display());
    let spec = |spec: &mut oci::Spec| {
        let hooks = oci::Hooks { CreateRuntime: hook(&script), ..Default::default() };
        spec.Hooks = Some(hooks).into();
    };
    let slow = host.create_with("slow", sh(&["sh", "-c", "exit 5"]), spec);
    let others = async {
        for number in 0..3 {
            let id = format!("fast{number}");
            host.run(&id, sh(&["sh", "-c", "exit 3"])).await.unwrap();
            assert_eq!(host.wait(&id, "").await.unwrap(), 3);
        }
        fs::write(&gate, "").unwrap();
        Instant::now()
    };
    let created = async {
        slow.await.unwrap();
        Instant::now()
    };
    let (created, opened) = tokio::join!(created, others);
    assert!(created > opened);
    host.start_container("slow").await.unwrap();
    assert_eq!(host.wait("slow", "").await.unwrap(), 5);
}

/// A program among the guest's own hooks.
fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn the_guests_own_hooks_run_for_every_container_after_its_own() {
    let mut host = Host::start().await;
    let (hooks, log) = (host.dir.join("guest-hooks"), host.dir.join("hooks"));
    let kinds_of_guest = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
    for kind in kinds_of_guest {
        for name in ["20-second", "10-first"] {
            let script = format!("echo guest-{name}-$1 $(cat) >> {}", log.display());
            program(&hooks.join(kind).join(name), &script);
        }
    }
    fs::write(hooks.join("prestart/00-no-program"), "").unwrap();
    let request = CreateSandboxRequest { guest_hook_path: hooks.display().to_string(), ..Default::default() };
    host.client.create_sandbox(soon(), &request).await.unwrap();
    program(&hooks.join("prestart/15-too-late"), &format!("echo late >> {}", log.display()));

    let guest = |kind: &str| ["10-first", "20-second"].map(|name| format!("guest-{name}-{kind}"));
    let spec = |spec: &mut oci::Spec| spec.Hooks = Some(telling(&log, |_| "true".into())).into();
    host.create_with("own", sh(&["sh", "-c", "sleep 60"]), spec).await.unwrap();
    host.start_container("own").await.unwrap();
    host.remove("own").await.unwrap();
    let both = kinds_of_guest.map(|kind| [vec![kind.to_owned()], guest(kind).to_vec()].concat()).concat();
    assert_eq!(kinds(&log), both);

    fs::remove_file(&log).unwrap();
    host.create("none", sh(&["sh", "-c", "sleep 60"])).await.unwrap();
    host.kill_worker(Signal::SIGKILL);
    host.client = host.connect().await;
    host.start_container("none").await.unwrap();
    host.remove("none").await.unwrap();
    host.run("after", sh(&["sh", "-c", "exit 0"])).await.unwrap();
    host.remove("after").await.unwrap();
    let once = kinds_of_guest.map(|kind| guest(kind).to_vec()).concat();
    assert_eq!(kinds(&log), [once.clone(), once].concat(), "under the next worker too");

    program(&hooks.join("createRuntime/10-first"), "echo broken >&2; exit 3");
    let error = host.create("broken", sh(&["sh", "-c", "exit 0"])).await.unwrap_err().to_string();
    assert!(error.contains("createRuntime/10-first failed with exit status: 3: broken"), "{error}");
}

#[tokio::test]
async fn a_guest_without_hooks_has_none_and_a_path_that_is_none_is_refused() {
    let host = Host::start().await;
    let sandbox = |path: &str| CreateSandboxRequest { guest_hook_path: path.into(), ..Default::default() };
    let error = host.client.create_sandbox(soon(), &sandbox("hooks")).await.unwrap_err().to_string();
    assert!(error.contains("guest_hook_path") && error.contains("is not an absolute path"), "{error}");
    host.client.create_sandbox(soon(), &sandbox("/nonexistent")).await.unwrap();
    host.run("c1", sh(&["sh", "-c", "exit 4"])).await.unwrap();
    assert_eq!(host.wait("c1", "").await.unwrap(), 4);
}

/// While one container is being made, whether another call has been begun.
async fn another_begins(sequential: bool) -> bool {
    let host = Host::start_in(&format!("sequential = {sequential}\n"), "").await;
    let (gate, begun) = (host.dir.join("gate"), host.dir.join("agent.sock.state/journal/other.json"));
    let script = format!("touch {0}.seen; while [ ! -e {0} ]; do sleep 0.05; done", gate.display());
    let spec = |spec: &mut oci::Spec| {
        spec.Hooks = Some(oci::Hooks { CreateRuntime: hook(&script), ..Default::default() }).into();
    };
    let slow = host.create_with("slow", sh(&["sh", "-c", "exit 5"]), spec);
    // Signals do not wait for their turn; each answer is a chance for what came before to begin.
    let round = async || host.signal("nobody", "", 9).await.unwrap_err();
    let blocked = async || {
        while !gate.with_extension("seen").exists() {
            round().await;
        }
    };
    let other = async {
        blocked().await;
        host.create("other", sh(&["sh", "-c", "exit 6"])).await
    };
    let look = async {
        blocked().await;
        let (start, mut rounds) = (Instant::now(), 0);
        let patience = std::time::Duration::from_secs(15);
        while !begun.exists() && if sequential { rounds < 200 } else { start.elapsed() < patience } {
            round().await;
            rounds += 1;
        }
        let seen = begun.exists();
        fs::write(&gate, "").unwrap();
        seen
    };
    let (slow, other, seen) = tokio::join!(slow, other, look);
    slow.unwrap();
    other.unwrap();
    seen
}

#[tokio::test]
async fn calls_that_change_something_take_turns_where_they_are_to() {
    assert!(!another_begins(true).await, "one at a time");
    assert!(another_begins(false).await, "else at once");
}
