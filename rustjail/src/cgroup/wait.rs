//! Waiting for the last process of a group, by event.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use super::{Cgroup, CgroupError};
use crate::sys::pidfd;

impl Cgroup {
    /// Waits until no process is left in the group or below it; whether that was so within `limit`.
    ///
    /// With cgroup2 that is the kernel's `populated` event. On v1 alone the processes themselves are waited
    /// for, those of their children too that were born meanwhile.
    pub fn wait_until_empty(&self, limit: Duration) -> Result<bool, CgroupError> {
        let deadline = Instant::now() + limit;
        loop {
            let ready = match self.events() {
                Some(events) if self.populated()? => {
                    wait(&mut [PollFd::new(events, PollFlags::POLLPRI)], deadline)
                }
                Some(_) => return Ok(true),
                None => {
                    let left: Vec<OwnedFd> =
                        self.pids()?.into_iter().filter_map(|pid| pidfd::open(pid).ok()).collect();
                    match left.first() {
                        None => return Ok(true),
                        Some(one) => wait(&mut [PollFd::new(one.as_fd(), PollFlags::POLLIN)], deadline),
                    }
                }
            };
            if !ready.map_err(|errno| CgroupError::io("wait for the processes of", self.path(), errno))? {
                return Ok(false);
            }
        }
    }

    /// Kills every process, waits for the last one and removes the group and those below it. A process that
    /// does not die within `limit` (it waits for a device that does not answer) leaves everything in place:
    /// [`CgroupError::Busy`]. One that joins meanwhile is killed too.
    pub fn destroy(&self, limit: Duration) -> Result<(), CgroupError> {
        let deadline = Instant::now() + limit;
        loop {
            self.kill()?;
            let empty = self.wait_until_empty(deadline.saturating_duration_since(Instant::now()))?;
            match self.delete() {
                Err(CgroupError::Busy { .. }) if empty && Instant::now() < deadline => {}
                done => return done,
            }
        }
    }
}

/// Whether anything happened before the deadline.
fn wait(fds: &mut [PollFd<'_>], deadline: Instant) -> nix::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
