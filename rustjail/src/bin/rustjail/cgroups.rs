//! The containers' control groups: which, and how they are emptied.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use oci_spec::runtime::{LinuxResources, Spec};
use rustjail::{
    cgroup::{Begun, Cgroup, CgroupError, CgroupPath, Filled, Hierarchies, Placement, systemd::Unit},
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

/// A new container's group, as far as it is there before its process.
#[derive(Debug, Default)]
pub struct New {
    group: Group,
    /// Where it is; `None` where there is none to be had.
    pub path: Option<PathBuf>,
    /// systemd's unit, if it made the group.
    pub unit: Option<Unit>,
    /// Of that unit: kept until the container's process is in it.
    #[expect(dead_code, reason = "held until it is dropped")]
    keeper: Option<Keeper>,
}

#[derive(Debug, Default)]
enum Group {
    #[default]
    Absent,
    Begun(Begun),
    Filled(Filled),
    Whole(Cgroup),
}

impl New {
    fn without_unit(group: Group, path: CgroupPath) -> Self {
        Self { group, path: Some(path.as_path().to_owned()), ..Self::default() }
    }

    /// The directory that the process is born into, and the files by which it enters what is there already.
    pub fn placement(&self) -> Result<Option<Placement>, Error> {
        match &self.group {
            Group::Absent | Group::Filled(_) => Ok(None),
            Group::Begun(group) => Ok(Some(Placement { into: group.birthplace()?, tasks: Vec::new() })),
            Group::Whole(group) => Ok(Some(group.placement()?)),
        }
    }

    /// Makes the rest; answers the files by which the process enters it.
    pub fn fill(&mut self) -> Result<Vec<OwnedFd>, Error> {
        let (group, tasks) = match std::mem::take(&mut self.group) {
            Group::Begun(group) => {
                let group = group.fill()?;
                let tasks = group.tasks()?;
                (Group::Filled(group), tasks)
            }
            group => (group, Vec::new()),
        };
        self.group = group;
        Ok(tasks)
    }

    /// Writes its limits; answers the group, which is whole then.
    pub fn limit(&mut self, spec: &Spec) -> Result<Option<Cgroup>, Error> {
        match std::mem::take(&mut self.group) {
            Group::Absent => Ok(None),
            Group::Whole(group) => Ok(Some(group)),
            Group::Begun(group) => Ok(Some(group.finish(resources(spec))?)),
            Group::Filled(group) => Ok(Some(group.limit(resources(spec))?)),
        }
    }
}

fn resources(spec: &Spec) -> Option<&LinuxResources> {
    spec.linux().as_ref().and_then(|linux| linux.resources().as_ref())
}

/// Begins the group of a new container.
pub fn begin(context: &Context, spec: &Spec, id: &str) -> Result<New, Error> {
    let hierarchies = Hierarchies::detect()?;
    let wanted = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().as_deref());
    if context.systemd_cgroup {
        let unit = Unit::parse(wanted, id)?;
        let (group, keeper) = systemd::create(&hierarchies, &unit, resources(spec))?;
        let path = Some(group.path().to_owned());
        return Ok(New { group: Group::Whole(group), path, unit: Some(unit), keeper: Some(keeper) });
    }
    if hierarchies.is_empty() {
        return Ok(New::default());
    }
    let path = CgroupPath::parse(wanted, id)?;
    if !context.rootless {
        return Ok(New::without_unit(Group::Begun(Cgroup::begin(&hierarchies, &path)?), path));
    }
    match Cgroup::create(&hierarchies, &path, resources(spec)) {
        Err(error) if wanted.is_none() && is_denied(&error) => {
            context.log.debug(|| format!("the container gets no control group: {error}"));
            Ok(New::default())
        }
        result => Ok(New::without_unit(Group::Whole(result?), path)),
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
