//! Hooks of a host's configuration, run in the guest.

use std::{fs, path::Path, time::Instant};

use berth_protocols::oci;

use crate::host::{Host, sh};

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
