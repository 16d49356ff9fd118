//! `berth_*`: what only this agent can tell.

use super::{
    Snapshot, read,
    text::{Exposition, Kind},
};
use crate::observe::procfs::keyed;

/// What there is in the sandbox.
#[derive(Debug, Default)]
pub struct Census {
    /// How many containers are in each state.
    pub containers: Vec<(String, u64)>,
    /// Processes that were launched and have not ended.
    pub processes: u64,
    /// Bytes moved, by stream, since this worker started.
    pub stdio_bytes: [(&'static str, u64); 3],
    /// OOM kills nobody has asked for.
    pub oom_queued: u64,
    /// Those that were dropped because too many were queued.
    pub oom_dropped: u64,
    /// Messages to init that its socket has not taken.
    pub link_queued: u64,
    /// Exits that are on their way to their processes.
    pub exits_queued: u64,
}

/// The three processes the agent consists of.
#[derive(Debug, Default)]
pub struct Roles {
    /// Each role's name and process.
    pub pids: Vec<(&'static str, i32)>,
    /// Workers before this one.
    pub worker_restarts: u64,
    /// Launchers before the present one, in this worker's life.
    pub launcher_restarts: u64,
    /// Log lines of this worker that nobody read in time.
    pub log_lines_dropped: u64,
    /// Spans that no trace forwarder took; `None` where none are made.
    pub spans_dropped: Option<u64>,
}

/// One method's calls.
#[derive(Debug, Default)]
pub struct MethodCalls {
    /// Its name.
    pub method: &'static str,
    /// Upper bounds in seconds, and how many calls took no longer, each with those before it.
    pub buckets: Vec<(f64, u64)>,
    /// Seconds, all together.
    pub seconds: f64,
    /// Calls that have ended.
    pub count: u64,
    /// How many are running.
    pub running: u64,
    /// How many ended with each error.
    pub errors: Vec<(&'static str, u64)>,
}

pub(super) fn write(out: &mut Exposition, snapshot: &Snapshot) {
    out.family("berth_build_info", Kind::Gauge, "The agent's version, as a label.")
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    roles(out, &snapshot.roles);
    census(out, &snapshot.census);
    calls(out, &snapshot.calls);
}

fn roles(out: &mut Exposition, roles: &Roles) {
    let mut family =
        out.family("berth_role_resident_bytes", Kind::Gauge, "Memory of each role of the agent.");
    for (role, pid) in &roles.pids {
        let status = read(&format!("/proc/{pid}/status"));
        let resident = keyed(&status).find_map(|(key, value)| (key == "VmRSS").then_some(value)).unwrap_or(0);
        family.sample(&[("role", role)], resident.saturating_mul(1024));
    }
    out.family("berth_role_restarts_total", Kind::Counter, "How often a role was started again.")
        .sample(&[("role", "worker")], roles.worker_restarts)
        .sample(&[("role", "launcher")], roles.launcher_restarts);
    out.family("berth_log_lines_dropped_total", Kind::Counter, "Log lines that nobody read in time.")
        .sample(&[], roles.log_lines_dropped);
    if let Some(dropped) = roles.spans_dropped {
        out.family("berth_spans_dropped_total", Kind::Counter, "Spans that no trace forwarder took in time.")
            .sample(&[], dropped);
    }
}

fn census(out: &mut Exposition, census: &Census) {
    let mut family = out.family("berth_containers", Kind::Gauge, "Containers by state.");
    for (state, count) in &census.containers {
        family.sample(&[("state", state)], count);
    }
    out.family("berth_processes", Kind::Gauge, "Processes that were launched and have not ended.")
        .sample(&[], census.processes);
    let mut family =
        out.family("berth_stdio_bytes_total", Kind::Counter, "Bytes moved to and from processes.");
    for (stream, bytes) in census.stdio_bytes {
        family.sample(&[("stream", stream)], bytes);
    }
    out.family("berth_queue_depth", Kind::Gauge, "What waits inside the agent.")
        .sample(&[("queue", "oom")], census.oom_queued)
        .sample(&[("queue", "exits")], census.exits_queued)
        .sample(&[("queue", "init")], census.link_queued);
    out.family("berth_oom_events_dropped_total", Kind::Counter, "OOM kills that nobody asked for in time.")
        .sample(&[], census.oom_dropped);
}

fn calls(out: &mut Exposition, calls: &[MethodCalls]) {
    let mut family = out.family("berth_rpc_running", Kind::Gauge, "Calls that are running.");
    for call in calls {
        family.sample(&[("method", call.method)], call.running);
    }
    let mut family = out.family("berth_rpc_errors_total", Kind::Counter, "Calls that ended with an error.");
    for call in calls {
        for (code, count) in &call.errors {
            family.sample(&[("method", call.method), ("code", code)], count);
        }
    }
    let mut family = out.family("berth_rpc_duration_seconds", Kind::Histogram, "How long calls took.");
    for call in calls {
        let method = ("method", call.method);
        for (bound, count) in &call.buckets {
            family.suffixed("_bucket", &[method, ("le", &bound.to_string())], count);
        }
        family.suffixed("_bucket", &[method, ("le", "+Inf")], call.count);
        family.suffixed("_sum", &[method], call.seconds).suffixed("_count", &[method], call.count);
    }
}
