//! What the kernel lets only the initial user namespace raise. A process on its way into another one has it
//! set before, or by its maker from outside.

use std::io;

use crate::{
    plan::Process,
    sys::{process::set_rlimit, sched},
};

/// Which setting could not be made.
#[derive(Debug)]
pub(crate) struct LimitError {
    /// Completes the sentence "cannot ...".
    pub(crate) step: &'static str,
    /// What it was to be.
    pub(crate) shown: String,
    /// How it failed.
    pub(crate) source: io::Error,
}

/// Gives the process `pid` (0 being the caller) the resource limits and the priorities of `process`.
pub(crate) fn apply(pid: i32, process: &Process) -> Result<(), LimitError> {
    for limit in &process.rlimits {
        set_rlimit(pid, limit.resource, limit.soft, limit.hard).map_err(|source| LimitError {
            step: "set the resource limit",
            shown: format!("{} to {}:{}", limit.resource, limit.soft, limit.hard),
            source,
        })?;
    }
    if let Some(scheduler) = process.scheduler {
        sched::set_scheduler(pid, scheduler).map_err(|source| LimitError {
            step: "set the scheduling policy",
            shown: scheduler.policy.to_string(),
            source,
        })?;
    }
    if let Some(priority) = process.io_priority {
        sched::set_io_priority(pid, priority).map_err(|source| LimitError {
            step: "set the I/O priority",
            shown: format!("class {} level {}", priority >> 13, priority & 0x1fff),
            source,
        })?;
    }
    Ok(())
}
