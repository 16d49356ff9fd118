//! Calls that a seccomp agent decides, where the command hands the listener over.

use serde_json::json;

use crate::{
    jail::Jail,
    support::agent::{Agent, profile},
};

/// A container whose `mkdir` the agent refuses.
fn jail(script: &str) -> (Jail, Agent) {
    let mut jail = Jail::new(script);
    let agent = Agent::new(&jail.bundle);
    jail.bundle.set("/linux/seccomp", profile(&agent, &["mkdir", "mkdirat"], &[]));
    (jail, agent)
}

#[test]
fn run_start_and_exec_hand_the_listener_over() {
    let script = "mkdir /tmp/x 2>/dev/null || echo refused";
    let (jail, mut agent) = jail(script);
    assert_eq!(jail.ok(&["run", "c"]), "refused");
    let told = agent.state();
    assert_eq!(told["state"]["metadata"], "told to the agent");
    assert_eq!((told["state"]["state"]["id"].as_str(), &told["fds"]), (Some("c"), &json!(1)));

    let mut jail = jail;
    jail.bundle.set("/process/args", json!(["sleep", "1000"]));
    jail.ok(&["create", "c"]);
    jail.ok(&["start", "c"]);
    let told = agent.state();
    let pid = jail.pid("c");
    assert_eq!((&told["state"]["pid"], &told["state"]["state"]["status"]), (&json!(pid), &json!("created")));
    assert_eq!(jail.ok(&["exec", "c", "sh", "-c", script]), "refused");
    let told = agent.state();
    assert_ne!(told["state"]["pid"], pid);
    assert_eq!(told["state"]["state"]["pid"], pid);
    assert_eq!(told["state"]["state"]["status"], "running");
}

#[test]
fn without_an_agent_nothing_runs() {
    let (jail, agent) = jail("touch /ran");
    drop(agent);
    jail.refused(&["run", "c"], 1, "agent.sock");
    jail.refused(&["state", "c"], 1, "does not exist");
    jail.ok(&["create", "c"]);
    jail.refused(&["start", "c"], 1, "agent.sock");
    assert!(crate::jail::eventually(|| jail.status("c") == "stopped"));
    assert!(!jail.bundle.rootfs().join("ran").exists());
}
