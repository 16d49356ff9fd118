//! Into the control groups.
//!
//! Groups that are there are entered first of all. Those that the maker is still making are entered when something
//! depends on them: a mount that shows them, a copy that counts as the container's memory, a hook that may look for
//! them; and in any case before the process is given what the program inherits, so nothing of the container's own
//! ever runs outside.

use std::{fs::File, os::fd::AsFd};

use nix::{sched::CloneFlags, unistd};

use super::step::At;
use crate::{
    plan::Plan,
    sync::{self, Place, StepError},
    sys::process as sys_process,
};

const ENTER: &str = "enter the cgroup";

/// What of its groups a process is not in yet.
#[derive(Debug)]
pub(super) struct Groups {
    more: bool,
    /// A cgroup namespace is rooted at the groups its maker is in, so it comes after them.
    namespace: bool,
}

impl Groups {
    pub(super) fn of(plan: &Plan) -> Self {
        let create = CloneFlags::from_bits_retain(plan.namespaces.create as i32);
        Self { more: plan.placement.more, namespace: create.contains(CloneFlags::CLONE_NEWCGROUP) }
    }

    /// Waits for those that the maker makes and enters them, once.
    pub(super) fn enter_all(&mut self, sync: &File) -> Result<(), StepError> {
        if std::mem::take(&mut self.more) {
            loop {
                match sync::wait_for_place(sync).at(ENTER, "")? {
                    Some(Place::Some(tasks)) => tasks.into_iter().try_for_each(enter)?,
                    Some(Place::Last(tasks)) => break tasks.into_iter().try_for_each(enter)?,
                    // The maker could not make them, and knows that.
                    None => sys_process::exit_now(super::FAILED),
                }
            }
        }
        if std::mem::take(&mut self.namespace) {
            nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP).at("make the cgroup namespace", "")?;
        }
        Ok(())
    }
}

/// Enters the one whose `tasks` file this is.
pub(super) fn enter(tasks: impl AsFd) -> Result<(), StepError> {
    unistd::write(tasks, b"0").at(ENTER, "").map(drop)
}
