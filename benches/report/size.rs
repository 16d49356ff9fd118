//! What the agent weighs, and how soon it is there.

use std::fs;

use berth::{agent_binary, scratch_dir};
use berth_protocols::health::{CheckRequest, HealthCheckResponse};

use crate::{
    sample::Samples,
    server::{self, Server},
    table::Table,
};

const MIB: f64 = 1024.0 * 1024.0;

pub fn measure(table: &mut Table, agent: &Server) {
    let binary = fs::metadata(agent_binary()).expect("stat the agent").len() as f64 / MIB;
    table.figure("binary, stripped and static", binary, "MiB", Some(4.0));

    let mut total = 0.0;
    for (role, pid) in roles(agent.pid()) {
        let pss = pss(pid);
        table.figure(&format!("idle PSS of {role}"), pss / MIB, "MiB", None);
        total += pss;
    }
    table.figure("idle PSS of all roles", total / MIB, "MiB", Some(4.0));

    let (listening, reply) = start_up();
    table.figure("exec to listening", listening.median(), "ms", Some(5.0));
    table.figure("exec to first reply", reply.median(), "ms", None);
}

fn roles(init: u32) -> Vec<(String, u32)> {
    let children =
        fs::read_to_string(format!("/proc/{init}/task/{init}/children")).expect("the agent's children");
    let mut roles = vec![("init".to_owned(), init)];
    for pid in children.split_whitespace() {
        let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let role = arguments.split('\0').nth(1).unwrap_or("?").to_owned();
        roles.push((role, pid.parse().expect("a pid")));
    }
    roles
}

fn pss(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps_rollup");
    let line = text.lines().find(|line| line.starts_with("Pss:")).expect("a Pss line");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("a number") * 1024.0
}

fn start_up() -> (Samples, Samples) {
    let (mut listening, mut reply) = (Samples::default(), Samples::default());
    for _ in 0..20 {
        let dir = scratch_dir("start");
        let start = std::time::Instant::now();
        let mut process = server::spawn(&agent_binary(), &dir, "");
        let mut client = server::connect(&dir.join("agent.sock"));
        listening.push(start.elapsed());
        client.call::<HealthCheckResponse>("grpc.Health", "Check", &CheckRequest::new()).expect("Check");
        reply.push(start.elapsed());
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(process.id() as i32),
            nix::sys::signal::SIGTERM,
        );
        let _ = process.wait();
        let _ = fs::remove_dir_all(&dir);
    }
    (listening, reply)
}
