//! Being told that the kernel killed a process of a group for want of memory.
//!
//! What counts is the kernel's own counter of kills: an event only says that it is time to look, so several
//! kills in one wake-up are all counted, and none twice.
//!
//! ```text
//!   v2   memory.events changes after the counter did: one look finds it
//!   v1   the event comes before the kill, and none after it:
//!        event --> look --> counter rose --------------------------> idle
//!                   |  ^                                               ^
//!                   v  | RETRY                     LOOKS are used up   |
//!                  no kill yet ----------------------------------------+
//! ```

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
        uio::pread,
    },
};

use super::{
    Cgroup, CgroupError, Controller,
    dir::Dir,
    parse,
    walk::{Visitor, walk},
};

/// From an event of v1 to the next look at a counter that had not risen yet. The kernel gives no later event.
const RETRY: Duration = Duration::from_millis(5);

/// How many looks an event of v1 is worth: a group above may have been the one short of memory, and then no
/// kill of this group ever follows.
const LOOKS: u32 = 200;

/// A subscription to a group's OOM kills: when its descriptor is readable, [`OomEvents::take`] says how many
/// there were since the last look.
#[derive(Debug)]
pub struct OomEvents {
    /// Readable when one of the sources is ready, however it tells that.
    ready: Epoll,
    source: Source,
    dir: Dir,
    seen: u64,
}

#[derive(Debug)]
enum Source {
    /// Registered in `cgroup.event_control`, which removing the group signals too.
    V1 { event: EventFd, retry: TimerFd, looks: u32 },
    /// `memory.events`, which also counts limits that were merely hit.
    V2(OwnedFd),
}

impl Cgroup {
    /// Subscribes to kills after the first `known` ones of the group's life, but is woken only by what happens from
    /// now on; `None` where no hierarchy accounts for memory.
    pub fn oom_events(&self, known: u64) -> Result<Option<OomEvents>, CgroupError> {
        let Some(controller) = self.find("memory") else {
            return Ok(None);
        };
        let dir = controller.dir().try_clone()?;
        let failed = |errno| CgroupError::io("watch the OOM events of", dir.path(), errno);
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let source = match controller {
            Controller::V1(dir) => {
                let event = subscribe_v1(dir)?;
                let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
                let retry = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed)?;
                ready.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
                ready.add(&retry, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed)?;
                Source::V1 { event, retry, looks: 0 }
            }
            Controller::V2(dir) => {
                let events = dir.open_file("memory.events", OFlag::O_RDONLY)?;
                ready.add(&events, EpollEvent::new(EpollFlags::EPOLLPRI, 0)).map_err(failed)?;
                Source::V2(events)
            }
        };
        let events = OomEvents { ready, source, dir, seen: known };
        // A file that was not read since it was opened counts as changed.
        events.kills()?;
        Ok(Some(events))
    }
}

impl OomEvents {
    /// How many processes were killed since the last call, and rearms the descriptor.
    pub fn take(&mut self) -> Result<u64, CgroupError> {
        let signalled = self.rearm()?;
        let kills = self.kills()?;
        let new = kills.saturating_sub(self.seen);
        self.seen = kills;
        self.look_again(signalled, new)?;
        Ok(new)
    }

    /// The kernel's counter; in a group that is gone nothing is killed any more.
    fn kills(&self) -> Result<u64, CgroupError> {
        match &self.source {
            // On v1 each group has a counter of its own, and the workload may have made groups below.
            Source::V1 { .. } => {
                let mut kills = Kills(0);
                match walk(self.dir.try_clone()?, &mut kills) {
                    Err(error) if matches!(error.errno(), Some(libc::ENODEV | libc::ENOENT)) => Ok(self.seen),
                    // A group below that is removed takes its counter along.
                    done => done.map(|()| kills.0.max(self.seen)),
                }
            }
            // Read through the descriptor that is polled: that is what rearms it.
            Source::V2(events) => {
                let mut text = [0; 1024];
                match pread(events, &mut text, 0) {
                    Ok(length) => {
                        let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
                        Ok(parse::keyed(&text, "oom_kill").unwrap_or(self.seen))
                    }
                    Err(Errno::ENODEV) => {
                        // A descriptor of a group that is gone stays ready for ever.
                        let _ = self.ready.delete(events);
                        Ok(self.seen)
                    }
                    Err(errno) => Err(CgroupError::io("read", self.dir.path().join("memory.events"), errno)),
                }
            }
        }
    }

    /// Whether a v1 event has come since the last call.
    fn rearm(&self) -> Result<bool, CgroupError> {
        let Source::V1 { event, retry, .. } = &self.source else {
            return Ok(false);
        };
        let failed = |errno| CgroupError::io("read the OOM event of", self.dir.path(), errno);
        match retry.wait() {
            Ok(()) | Err(Errno::EAGAIN) => {}
            Err(errno) => return Err(failed(errno)),
        }
        match event.read() {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// After a v1 event, has the descriptor become ready again until its kill is counted.
    fn look_again(&mut self, signalled: bool, new: u64) -> Result<(), CgroupError> {
        let Source::V1 { retry, looks, .. } = &mut self.source else {
            return Ok(());
        };
        *looks = match (signalled, new) {
            // The kills just counted may belong to an earlier event than this one.
            (true, _) => LOOKS,
            (false, 0) => looks.saturating_sub(1),
            (false, _) => 0,
        };
        if *looks == 0 {
            return Ok(());
        }
        let once = Expiration::OneShot(TimeSpec::from_duration(RETRY));
        retry
            .set(once, TimerSetTimeFlags::empty())
            .map_err(|errno| CgroupError::io("watch the OOM events of", self.dir.path(), errno))
    }
}

impl AsFd for OomEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }
}

struct Kills(u64);

impl Visitor for Kills {
    fn enter(&mut self, dir: &Dir) -> Result<(), CgroupError> {
        let control = dir.read_if_any("memory.oom_control")?;
        self.0 += control.and_then(|text| parse::keyed(&text, "oom_kill")).unwrap_or(0);
        Ok(())
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
