//! Being told that the kernel killed a process of a group for want of memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::eventfd::{EfdFlags, EventFd},
};

use super::{Cgroup, CgroupError, Controller, dir::Dir, parse};

/// A subscription to a group's OOM kills: when its descriptor is ready, [`OomEvents::take`] says how many
/// there were since the last look.
#[derive(Debug)]
pub struct OomEvents {
    source: Source,
    dir: Dir,
    seen: u64,
}

#[derive(Debug)]
enum Source {
    /// Registered in `cgroup.event_control`. Removing the group signals it too.
    V1(EventFd),
    /// `memory.events`, which also counts limits that were merely hit.
    V2(OwnedFd),
}

impl Cgroup {
    /// Subscribes; `None` where no hierarchy accounts for memory.
    pub fn oom_events(&self) -> Result<Option<OomEvents>, CgroupError> {
        let Some(controller) = self.find("memory") else {
            return Ok(None);
        };
        let dir = controller.dir().try_clone()?;
        let source = match controller {
            Controller::V1(dir) => Source::V1(subscribe_v1(dir)?),
            Controller::V2(dir) => Source::V2(dir.open_file("memory.events", OFlag::O_RDONLY)?),
        };
        let mut events = OomEvents { source, dir, seen: 0 };
        events.take()?;
        Ok(Some(events))
    }
}

impl OomEvents {
    /// Whether to wait for POLLPRI (and not POLLIN).
    pub fn is_priority(&self) -> bool {
        matches!(self.source, Source::V2(_))
    }

    /// How many processes were killed since the last call, and rearms the descriptor.
    pub fn take(&mut self) -> Result<u64, CgroupError> {
        let file = match &self.source {
            Source::V1(event) => {
                match event.read() {
                    Ok(_) | Err(Errno::EAGAIN) => {}
                    Err(errno) => {
                        return Err(CgroupError::io("read the OOM event of", self.dir.path(), errno));
                    }
                }
                "memory.oom_control"
            }
            Source::V2(events) => {
                // The event is rearmed by reading this descriptor, not just the file.
                match nix::sys::uio::pread(events, &mut [0; 256], 0) {
                    Ok(_) | Err(Errno::ENODEV) => {}
                    Err(errno) => {
                        return Err(CgroupError::io("read the OOM event of", self.dir.path(), errno));
                    }
                }
                "memory.events"
            }
        };
        // In a group that is gone nothing is killed any more.
        let kills =
            self.dir.read_if_any(file)?.and_then(|text| parse::keyed(&text, "oom_kill")).unwrap_or(self.seen);
        let new = kills.saturating_sub(self.seen);
        self.seen = kills;
        Ok(new)
    }
}

impl AsFd for OomEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::V1(event) => event.as_fd(),
            Source::V2(events) => events.as_fd(),
        }
    }
}

fn subscribe_v1(dir: &Dir) -> Result<EventFd, CgroupError> {
    use std::os::fd::AsRawFd as _;
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|errno| CgroupError::io("make an OOM event for", dir.path(), errno))?;
    let control = dir.open_file("memory.oom_control", OFlag::O_RDONLY)?;
    let line = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
    dir.write("cgroup.event_control", &line)?;
    Ok(event)
}
