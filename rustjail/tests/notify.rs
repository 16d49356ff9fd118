//! Calls that an agent outside of the container decides: the agent is a program of its own, which speaks to
//! the kernel directly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use serde_json::json;
use support::{
    Bundle,
    agent::{Agent, profile},
    process,
};

#[test]
fn the_agent_is_told_who_asks_and_decides() {
    let mut bundle = Bundle::new("mkdir /tmp/x; ls /tmp; grep Seccomp: /proc/self/status");
    let mut agent = Agent::new(&bundle);
    bundle.set("/linux/seccomp", profile(&agent, &["mkdir", "mkdirat"], &[]));
    let outcome = bundle.run();
    assert!(outcome.stderr.contains("Protocol not supported"), "{outcome:?}");
    assert_eq!(outcome.text(), "Seccomp:\t2");
    let told = agent.state();
    assert_eq!((&told["fds"], &told["state"]["fds"]), (&json!(1), &json!(["seccompFd"])));
    assert_eq!(told["state"]["metadata"], "told to the agent");
    assert_eq!(told["state"]["state"]["id"], "test");
    assert!(told["state"]["pid"].as_i64().unwrap() > 1);
}

/// What the runtime itself calls between the filter and the program waits for the agent like anything else.
#[test]
fn every_other_call_of_the_runtime_may_be_asked_about() {
    for privileged in [true, false] {
        let mut bundle = Bundle::new("echo done");
        let mut agent = Agent::new(&bundle);
        let names = ["read", "execve", "close", "capset", "capget", "prctl", "openat", "sendmsg", "ioctl"];
        let flags = ["SECCOMP_FILTER_FLAG_TSYNC", "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"];
        bundle.set("/linux/seccomp", profile(&agent, &names, &flags));
        bundle.set("/process/noNewPrivileges", json!(!privileged));
        assert_eq!(bundle.run().text(), "done");
        agent.state();
    }
}

#[test]
fn an_exec_has_a_listener_of_its_own() {
    let mut bundle = Bundle::new("");
    let mut agent = Agent::new(&bundle);
    bundle.set("/linux/seccomp", profile(&agent, &["mkdir", "mkdirat"], &[]));
    let outcome = bundle.exec(process("mkdir /tmp/x || echo refused"));
    assert_eq!(outcome.text(), "refused");
    let (init, exec) = (agent.state(), agent.state());
    assert_ne!(init["state"]["pid"], exec["state"]["pid"]);
}

#[test]
fn an_agent_that_is_not_there_is_named() {
    let mut bundle = Bundle::new("true");
    let mut agent = Agent::new(&bundle);
    agent.path = bundle.path.join("nobody.sock");
    bundle.set("/linux/seccomp", profile(&agent, &["mkdir"], &[]));
    let outcome = bundle.run();
    assert!(
        outcome.refusal().contains("nobody.sock") && outcome.refusal().contains("connect"),
        "{outcome:?}"
    );
}
