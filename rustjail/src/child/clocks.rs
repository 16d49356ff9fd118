//! A time namespace whose clocks are offset.
//!
//! The offsets can be set only until the first process is in the namespace, so it is made for children, given
//! its offsets, and then entered like one that exists. All of that comes before this process takes on the users
//! of a new user namespace: `timens_offsets` belongs to the initial root as long as it cannot be dumped.

use nix::sched::{CloneFlags, setns, unshare};

use super::{proc::Proc, step::At};
use crate::{plan::Namespaces, sync::StepError};

/// Makes the time namespace of `namespaces` if it needs this way.
pub(super) fn make(namespaces: &Namespaces, proc: Option<&Proc>) -> Result<(), StepError> {
    if namespaces.time_offsets.is_empty() {
        return Ok(());
    }
    let proc = proc.ok_or(std::io::ErrorKind::NotFound).at("find the private", "procfs")?;
    let time = CloneFlags::from_bits_retain(libc::CLONE_NEWTIME);
    unshare(time).at("make the time namespace", "")?;
    for offset in &namespaces.time_offsets {
        let line = format!("{} {} {}\n", offset.clock, offset.seconds, offset.nanoseconds);
        proc.write("self/timens_offsets", &line)?;
    }
    setns(proc.time_for_children()?, time).at("enter the time namespace", "")
}
