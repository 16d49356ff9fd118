//! A container's init as a later command finds it: by its number, and by when it started, since numbers are
//! used again.

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, poll};
use rustjail::{procfs, sys::pidfd};
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
    /// The process `pid`, which has not been reaped; `None` when it is gone nevertheless.
    pub fn new(pid: i32) -> Option<Self> {
        let (_, started) = stat(pid)?;
        Some(Self { pid, started })
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        matches!(stat(self.pid), Some((state, started)) if started == self.started && state != b'Z' && state != b'X')
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

/// State and start time. The name in front of them may hold anything, so they are counted from its last `)`.
fn stat(pid: i32) -> Option<(u8, u64)> {
    let text = procfs::read(&format!("/proc/{pid}/stat")).ok()?;
    parse(&text)
}

fn parse(text: &[u8]) -> Option<(u8, u64)> {
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(end + 2..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let started = str::from_utf8(fields.nth(18)?).ok()?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_the_fields() {
        let line = b"7 (a) Z (b) S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(parse(line), Some((b'S', 4242)));
        assert_eq!(parse(b"7 (a"), None);
        assert_eq!(parse(b"7 (a) S 1"), None);
    }

    #[test]
    fn a_number_that_was_used_again_is_another_process() {
        let own = Init::new(std::process::id() as i32).unwrap();
        assert!(own.is_alive() && own.pidfd().is_some());
        let other = Init { started: own.started + 1, ..own };
        assert!(!other.is_alive() && other.pidfd().is_none());
    }

    #[test]
    fn who_outlives_a_process_finds_it_ended() {
        let mut child = std::process::Command::new("sleep").arg("0.2").spawn().unwrap();
        let init = Init::new(child.id() as i32).unwrap();
        assert!(init.is_alive());
        init.outlive();
        assert!(!init.is_alive());
        child.wait().unwrap();
        init.outlive();
    }
}
