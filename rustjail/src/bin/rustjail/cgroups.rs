//! The containers' control groups: which, and how they are emptied.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use oci_spec::runtime::Spec;
use rustjail::{
    cgroup::{Cgroup, CgroupError, CgroupPath, Hierarchies, systemd::Unit},
    sys::pidfd,
};

use crate::{
    context::Context,
    error::Error,
    store::Record,
    systemd::{self, Keeper},
};

/// How long killed processes are given to end. One that has not ended by then waits for a device.
pub const KILL_WAIT: Duration = Duration::from_secs(10);

/// A new container's group, and what keeps it until the container's process is in it.
#[derive(Debug, Default)]
pub struct New {
    /// `None` where there are none to be had.
    pub group: Option<Cgroup>,
    /// systemd's unit, if it made the group.
    pub unit: Option<Unit>,
    /// Of that unit.
    pub keeper: Option<Keeper>,
}

/// Makes the group of a new container.
pub fn create(context: &Context, spec: &Spec, id: &str) -> Result<New, Error> {
    let hierarchies = Hierarchies::detect()?;
    let linux = spec.linux().as_ref();
    let wanted = linux.and_then(|linux| linux.cgroups_path().as_deref());
    let resources = linux.and_then(|linux| linux.resources().as_ref());
    if context.systemd_cgroup {
        let unit = Unit::parse(wanted, id)?;
        let (group, keeper) = systemd::create(&hierarchies, &unit, resources)?;
        return Ok(New { group: Some(group), unit: Some(unit), keeper: Some(keeper) });
    }
    if hierarchies.is_empty() {
        return Ok(New::default());
    }
    let path = CgroupPath::parse(wanted, id)?;
    match Cgroup::create(&hierarchies, &path, resources) {
        Err(error) if context.rootless && wanted.is_none() && is_denied(&error) => {
            context.log.debug(|| format!("the container gets no control group: {error}"));
            Ok(New::default())
        }
        result => Ok(New { group: Some(result?), ..New::default() }),
    }
}

fn is_denied(error: &CgroupError) -> bool {
    matches!(error.errno(), Some(libc::EACCES | libc::EPERM | libc::EROFS))
}

/// The group that `record` names, `None` when it is gone or never was.
pub fn open(record: &Record) -> Result<Option<Cgroup>, Error> {
    record.cgroup.as_deref().map_or(Ok(None), open_path)
}

/// The group `path`, relative to the hierarchies' roots.
pub fn open_path(path: &Path) -> Result<Option<Cgroup>, Error> {
    let path = CgroupPath::parse(Some(path), "")?;
    match Cgroup::open(&Hierarchies::detect()?, &path) {
        Ok(group) => Ok(Some(group)),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(CgroupError::NoFile { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the container is paused.
pub fn is_frozen(record: &Record) -> Result<bool, Error> {
    match open(record)? {
        Some(group) => Ok(group.frozen()?),
        None => Ok(false),
    }
}

/// Kills what is in `group` and waits until it is empty.
pub fn empty(group: &Cgroup, what: &str) -> Result<(), Error> {
    let deadline = Instant::now() + KILL_WAIT;
    while group.populated()? {
        group.kill()?;
        let unkillable = || Error::Unkillable { what: what.to_owned(), seconds: KILL_WAIT.as_secs() };
        match group.events() {
            Some(events) => {
                // Asked again once the watch is on, since the last may have ended in between.
                if group.populated()? && !wait(events, PollFlags::POLLPRI, deadline)? {
                    return Err(unkillable());
                }
            }
            None => {
                let left: Vec<OwnedFd> =
                    group.pids()?.into_iter().filter_map(|pid| pidfd::open(pid).ok()).collect();
                for process in left {
                    if !wait(process.as_fd(), PollFlags::POLLIN, deadline)? {
                        return Err(unkillable());
                    }
                }
            }
        }
    }
    Ok(())
}

/// Waits for an event; whether it came in time.
pub fn wait(fd: BorrowedFd<'_>, flags: PollFlags, deadline: Instant) -> Result<bool, Error> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, flags)], timeout) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::io("wait for the end of", "the container's processes")(errno)),
        }
    }
}
