//! What a host scrapes with GetMetrics, in Prometheus's text format.
//!
//! The `kata_*` families have the names, items and units of Kata's agent, because dashboards ask for them; a value
//! that this kernel does not tell is 0 there. The `berth_*` families are our own. Everything is read when it is
//! asked for, each file once, and nothing is kept between two scrapes but counters.

mod guest;
mod own;
mod process;
pub mod text;

pub use own::{Census, MethodCalls, Roles};

use text::Exposition;

/// Network interfaces, disks and file systems of which each is told: a reply has to fit a frame, and what a
/// workload makes a thousand of says nothing of the guest.
const MOST: usize = 256;

/// What the worker itself knows, for [`render`] to put beside what the kernel tells.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// How often this worker was scraped.
    pub scrapes: u64,
    /// Containers, processes, queues.
    pub census: Census,
    /// The three roles.
    pub roles: Roles,
    /// Each method that was called.
    pub calls: Vec<MethodCalls>,
}

/// Reads procfs and writes everything down; blocking.
pub fn render(snapshot: &Snapshot) -> String {
    let mut out = Exposition::default();
    process::write(&mut out, snapshot.scrapes);
    guest::write(&mut out);
    own::write(&mut out, snapshot);
    out.finish()
}

/// A file's text; empty where there is none, which every parser takes for "nothing is told".
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
