//! Being told that a group's tasks wait too much, and how high its memory use went.
//!
//! Both need the cgroup2 tree: v1 has neither pressure of groups nor a peak that can be reset for one reader.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use nix::{errno::Errno, fcntl::OFlag, sys::uio::pread, unistd::write};

use super::{Cgroup, CgroupError, Controller, dir::Dir, parse};

/// What tasks can wait for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Resource {
    /// CPU time.
    Cpu,
    /// Memory: reclaim, swapping in, refaults.
    Memory,
    /// Block devices.
    Io,
}

/// How many of the tasks wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Share {
    /// At least one.
    Some,
    /// All that are not idle.
    Full,
}

/// A threshold on waiting: its descriptor polls as POLLPRI each time tasks waited for `stall` within a window
/// (at most once for each window), and as POLLERR when the group is gone.
#[derive(Debug)]
pub struct PressureTrigger(OwnedFd);

/// The most memory a group used since the last look.
#[derive(Debug)]
pub struct MemoryPeak {
    peak: OwnedFd,
    events: OwnedFd,
    dir: Dir,
}

impl Cgroup {
    /// Sets a threshold: `stall` of waiting within `window`, which is 0.5 to 10 s, and without CAP_SYS_RESOURCE
    /// a multiple of 2 s. `None` where the kernel does not measure pressure of groups.
    pub fn pressure_trigger(
        &self,
        resource: Resource,
        share: Share,
        stall: Duration,
        window: Duration,
    ) -> Result<Option<PressureTrigger>, CgroupError> {
        let Some(unified) = &self.unified else {
            return Ok(None);
        };
        let file = match resource {
            Resource::Cpu => "cpu.pressure",
            Resource::Memory => "memory.pressure",
            Resource::Io => "io.pressure",
        };
        let trigger = match unified.dir().open_file(file, OFlag::O_RDWR | OFlag::O_NONBLOCK) {
            Ok(fd) => fd,
            Err(CgroupError::NoFile { .. }) => return Ok(None),
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error),
        };
        let share = match share {
            Share::Some => "some",
            Share::Full => "full",
        };
        let line = format!("{share} {} {}\0", stall.as_micros(), window.as_micros());
        write(&trigger, line.as_bytes())
            .map_err(|errno| CgroupError::write(&unified.dir().path().join(file), &line, errno))?;
        Ok(Some(PressureTrigger(trigger)))
    }

    /// Begins to follow the peak of memory use; `None` where the kernel keeps no peak for each reader, which
    /// cgroup2 does since Linux 6.12.
    pub fn memory_peak(&self) -> Result<Option<MemoryPeak>, CgroupError> {
        let Some(Controller::V2(dir)) = self.find("memory") else {
            return Ok(None);
        };
        let peak = match dir.open_file("memory.peak", OFlag::O_RDWR) {
            Ok(fd) => fd,
            Err(CgroupError::NoFile { .. }) => return Ok(None),
            // Before 6.12 the file has no writer.
            Err(error) if error.errno() == Some(libc::EACCES) => return Ok(None),
            Err(error) => return Err(error),
        };
        let events = dir.open_file("memory.events", OFlag::O_RDONLY)?;
        let mut peak = MemoryPeak { peak, events, dir: dir.try_clone()? };
        peak.reset()?;
        Ok(Some(peak))
    }
}

impl MemoryPeak {
    /// The most that was in use since the last call (or since the group was last followed), in bytes.
    pub fn take(&mut self) -> Result<u64, CgroupError> {
        let failed = |errno| CgroupError::io("read", self.dir.path().join("memory.peak"), errno);
        let mut text = [0; 32];
        let length = pread(&self.peak, &mut text, 0).map_err(failed)?;
        let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
        let most = parse::number(&text).unwrap_or(0);
        self.reset()?;
        Ok(most)
    }

    fn reset(&mut self) -> Result<(), CgroupError> {
        // Reading rearms the descriptor that is polled.
        match pread(&self.events, &mut [0; 1024], 0) {
            Ok(_) | Err(Errno::ENODEV) => {}
            Err(errno) => {
                return Err(CgroupError::io("read", self.dir.path().join("memory.events"), errno));
            }
        }
        match write(&self.peak, b"r") {
            Ok(_) | Err(Errno::ENODEV) => Ok(()),
            Err(errno) => Err(CgroupError::write(&self.dir.path().join("memory.peak"), "r", errno)),
        }
    }
}

impl AsFd for PressureTrigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Polls as POLLPRI when use reached `memory.high` or `memory.max`: the kernel has no event for a new peak
/// as such.
impl AsFd for MemoryPeak {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
