//! A container's init as a later command finds it: by its number, and by when it started, since numbers are
//! used again.

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, poll};
use rustjail::{procfs::Stat, sys::pidfd};
use serde::{Deserialize, Serialize};

/// In milliseconds.
const LAST_MOMENTS: u16 = 5000;

/// Exactly one process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Init {
    /// In the PID namespace of whoever made it.
    pub pid: i32,
    /// In clock ticks since boot, as `/proc/PID/stat` has it.
    pub started: u64,
}

impl Init {
    /// The process `pid`, of which this is told.
    pub fn new(pid: i32, stat: &Stat) -> Option<Self> {
        start(stat).map(|started| Self { pid, started })
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        let Ok(stat) = Stat::of(self.pid) else { return false };
        start(&stat) == Some(self.started) && !matches!(stat.state(), Some(b'Z' | b'X') | None)
    }

    /// A descriptor of it, unless it has ended.
    pub fn pidfd(&self) -> Option<OwnedFd> {
        let fd = pidfd::open(self.pid).ok()?;
        // Asked after the descriptor was opened: from here on the number cannot come to mean another.
        self.is_alive().then_some(fd)
    }

    /// Waits, for some seconds at most, until it has ended: it is about to, and nobody is to find it after that.
    pub fn outlive(&self) {
        if let Some(fd) = self.pidfd() {
            // Whoever looks at it next is told the truth in any case.
            let _ = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], LAST_MOMENTS);
        }
    }
}

/// When it started.
fn start(stat: &Stat) -> Option<u64> {
    stat.field(22)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(pid: u32) -> Init {
        Init::new(pid as i32, &Stat::of(pid as i32).unwrap()).unwrap()
    }

    #[test]
    fn a_number_that_was_used_again_is_another_process() {
        let own = init(std::process::id());
        assert!(own.is_alive() && own.pidfd().is_some());
        let other = Init { started: own.started + 1, ..own };
        assert!(!other.is_alive() && other.pidfd().is_none());
    }

    #[test]
    fn who_outlives_a_process_finds_it_ended() {
        let mut child = std::process::Command::new("sleep").arg("0.2").spawn().unwrap();
        let init = init(child.id());
        assert!(init.is_alive());
        init.outlive();
        assert!(!init.is_alive());
        child.wait().unwrap();
        init.outlive();
    }
}
