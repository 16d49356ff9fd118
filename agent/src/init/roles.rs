//! Starting the other two roles, and how soon.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::socket::{AddressFamily, SockFlag, SockType, socketpair},
};
use rustjail::sys::memfd;

const SELF: &str = "/proc/self/exe";

/// What init runs as worker and as launcher.
#[derive(Debug)]
pub struct Program {
    path: String,
    // The path names this descriptor.
    _image: OwnedFd,
    arguments: Vec<String>,
}

impl Program {
    /// The running binary: itself where that is a sealed copy, else one made now. Neither a container that
    /// reaches it through /proc/PID/exe (CVE-2019-5736) nor a root file system that goes away can change what is
    /// restarted. `arguments` are given to both roles after their name.
    pub fn current(arguments: Vec<String>) -> io::Result<Self> {
        let image = File::open(SELF)?;
        if !sealed(&image) {
            return Self::copy_of(SELF, arguments);
        }
        Ok(Self { path: path_of(&image), _image: image.into(), arguments })
    }

    /// Whether this process runs from a sealed copy.
    pub(super) fn is_sealed() -> bool {
        File::open(SELF).is_ok_and(|image| sealed(&image))
    }

    /// Goes on as a sealed copy of this binary, so that all roles share the memory of one text. Returns only
    /// when that fails.
    pub(super) fn become_sealed() -> io::Error {
        match File::open(SELF).and_then(|mut image| memfd::sealed_copy("berth-agent", &mut image)) {
            Ok(image) => {
                Command::new(path_of(&image)).arg0("berth-agent").args(std::env::args_os().skip(1)).exec()
            }
            Err(error) => error,
        }
    }

    /// Another binary.
    pub fn copy_of(path: &str, arguments: Vec<String>) -> io::Result<Self> {
        let image = memfd::sealed_copy("berth-agent", &mut File::open(path)?)?;
        Ok(Self { path: path_of(&image), _image: image, arguments })
    }

    /// Starts a role; `link` becomes its standard input, the one descriptor it inherits beside the outputs.
    pub(super) fn start(&self, role: &str, link: OwnedFd) -> io::Result<i32> {
        let mut command = Command::new(&self.path);
        command.arg0("berth-agent").arg(role).args(&self.arguments).stdin(Stdio::from(link));
        if std::env::var_os("PATH").is_none() {
            command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        }
        Ok(command.spawn()?.id().cast_signed())
    }
}

fn path_of(image: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", image.as_raw_fd())
}

/// A file that is no memory file has no seals and answers EINVAL.
fn sealed(image: &File) -> bool {
    fcntl(image, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_WRITE))
}

/// The two ends of a new link.
pub(super) fn link_pair(flags: SockFlag) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags | SockFlag::SOCK_CLOEXEC)?)
}

/// How long to wait before a role that died is started again: not at all, until it dies too often.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    deaths: VecDeque<Instant>,
}

impl Backoff {
    const FREE_DEATHS: usize = 5;
    const WINDOW: Duration = Duration::from_secs(60);
    const LONGEST: Duration = Duration::from_secs(1);

    /// Counts a death and says how long to wait. Never longer than a second: giving up would lose containers
    /// that run on well without their agent.
    pub(super) fn died(&mut self, now: Instant) -> Duration {
        self.deaths.retain(|&death| now.duration_since(death) < Self::WINDOW);
        self.deaths.push_back(now);
        let excess = self.deaths.len().saturating_sub(Self::FREE_DEATHS).min(7);
        if excess == 0 {
            Duration::ZERO
        } else {
            Self::LONGEST.min(Duration::from_millis(16) * (1 << excess))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_deaths_are_free_and_then_the_wait_grows_to_a_second() {
        let mut backoff = Backoff::default();
        let start = Instant::now();
        let waits: Vec<u128> =
            (0..13).map(|second| backoff.died(start + Duration::from_secs(second)).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 32, 64, 128, 256, 512, 1000, 1000, 1000]);
        assert_eq!(backoff.died(start + Duration::from_secs(200)), Duration::ZERO);
        assert_eq!(backoff.deaths.len(), 1);
    }
}
