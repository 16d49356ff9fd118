//! What a host scrapes: every name it asks for, and a text that Prometheus's own linter accepts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, Stdio},
};

use berth::{Agent, Guest, Role, code, deadline, process};
use berth_protocols::agent::GetMetricsRequest;
use nix::sys::signal::Signal;

const KATA: [&str; 17] = [
    "kata_agent_scrape_count",
    "kata_agent_threads",
    "kata_agent_total_time",
    "kata_agent_total_vm",
    "kata_agent_total_rss",
    "kata_agent_proc_status",
    "kata_agent_io_stat",
    "kata_agent_proc_stat",
    "kata_guest_load",
    "kata_guest_tasks",
    "kata_guest_vm_stat",
    "kata_guest_meminfo",
    "kata_guest_cpu_time",
    "kata_guest_netdev_stat",
    "kata_guest_diskstat",
    "kata_guest_filesystem_bytes",
    "kata_guest_filesystem_inodes",
];

/// What the linter would name otherwise, and hosts ask for by this name.
const LEGACY: &str = "kata_agent_scrape_count ";

async fn scrape(guest: &Guest) -> String {
    let request = GetMetricsRequest::new();
    deadline(guest.agent.get_metrics(ttrpc::context::with_timeout(0), &request)).await.unwrap().metrics
}

/// The number of the sample that begins with `sample` up to its value.
fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {sample} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn families(text: &str) -> BTreeSet<&str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect()
}

#[tokio::test]
async fn every_family_is_there_and_the_linter_accepts_them() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.run(&agent.container("c1", &["echo", "hello"])).await;
    code(guest.stats("no such container").await);
    let text = scrape(&guest).await;
    let families = families(&text);
    for name in KATA {
        assert!(families.contains(name), "{name} is missing");
    }
    let mut complaints = lint(&text);
    complaints.retain(|complaint| !complaint.starts_with(LEGACY));
    assert_eq!(complaints, [] as [&str; 0], "promtool's verdict");
}

fn lint(text: &str) -> Vec<String> {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = promtool.expect("run promtool (package prometheus)");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
    said.lines().map(str::to_owned).collect()
}

#[test]
fn the_linter_finds_fault() {
    assert!(!lint("a{x=\"1\"} 1\na{x=\"1\"} 2\n").is_empty());
}

#[tokio::test]
async fn figures_follow_what_happens() {
    let (agent, guest) = Agent::with_sandbox().await;
    guest.create(&agent.container("c1", &["cat"])).await.unwrap();
    guest.start("c1").await.unwrap();
    guest.exec("c1", "e1", process(&["sleep", "1000"])).await.unwrap();
    guest.write("c1", "", b"12345").await.unwrap();
    assert_eq!(guest.read_until("c1", "", "12345").await, "12345");
    guest.pause("c1").await.unwrap();
    code(guest.stats("nobody").await);

    let text = scrape(&guest).await;
    assert_eq!(value(&text, "berth_containers{state=\"paused\"}"), 1.0);
    assert_eq!(value(&text, "berth_processes"), 2.0);
    assert_eq!(value(&text, "berth_stdio_bytes_total{stream=\"stdin\"}"), 5.0);
    assert_eq!(value(&text, "berth_stdio_bytes_total{stream=\"stdout\"}"), 5.0);
    let count = |method: &str| format!("berth_rpc_duration_seconds_count{{method=\"{method}\"}}");
    assert_eq!(value(&text, &count("PauseContainer")), 1.0);
    let unknown = "berth_rpc_errors_total{method=\"StatsContainer\",code=\"invalid_argument\"}";
    assert_eq!(value(&text, unknown), 1.0);
    for role in ["init", "worker", "launcher"] {
        assert!(value(&text, &format!("berth_role_resident_bytes{{role=\"{role}\"}}")) > 100_000.0, "{role}");
    }
    assert_eq!(value(&text, "kata_agent_scrape_count"), 1.0);
    assert_eq!(value(&scrape(&guest).await, "kata_agent_scrape_count"), 2.0);

    agent.replace(Role::Worker, Signal::SIGKILL).await;
    let text = scrape(&agent.client().await).await;
    assert_eq!(value(&text, "berth_role_restarts_total{role=\"worker\"}"), 1.0);
    assert_eq!(value(&text, "berth_containers{state=\"paused\"}"), 1.0);
}
