//! Standard streams of container processes.
//!
//! Each stream is owned once, non-blocking, and is touched only when somebody asks: nothing is read ahead, so
//! a workload that nobody listens to is held by its own pipe and costs the agent no memory. Output is peeked
//! at and leaves the pipe only when it has been delivered ([`output`]); a terminal cannot be peeked at and
//! keeps its last unsent bytes ([`terminal`]). Raw streams ([`raw`], [`pump`]) bypass RPC altogether.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tokio::io::{Interest, unix::AsyncFd};

pub mod input;
pub mod output;
pub mod peek;
pub mod pump;
pub mod raw;
pub mod terminal;

/// The most that one read returns: a reply has to fit into a 4 MiB frame with room to spare.
pub const MAX_READ: usize = 1 << 20;

/// The two ends of one pipe between the agent and a process: `ours` does not block, `theirs` does.
#[derive(Debug)]
pub struct Pipe {
    /// The agent's end.
    pub ours: OwnedFd,
    /// The process's end.
    pub theirs: OwnedFd,
}

impl Pipe {
    /// A pipe that the process reads from.
    pub fn input() -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        set_nonblocking(&write)?;
        Ok(Self { ours: write, theirs: read })
    }

    /// A pipe that the process writes to, of `size` bytes where one is given and the kernel allows it.
    pub fn output(size: Option<u32>) -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        set_nonblocking(&read)?;
        if let Some(size) = size {
            // A size over fs.pipe-max-size is a wish that cannot be met, not a reason to run no container.
            let _refused = rustjail::sys::pipe::set_size(read.as_fd(), size as usize);
        }
        Ok(Self { ours: read, theirs: write })
    }
}

/// Makes the open file description of `fd` non-blocking.
pub fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Waits until `fd` is ready for `interest` and `attempt` does not answer `WouldBlock`.
pub(crate) async fn when_ready<T>(
    fd: &AsyncFd<OwnedFd>,
    interest: Interest,
    mut attempt: impl FnMut(&OwnedFd) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        let mut guard = fd.ready(interest).await?;
        if let Ok(outcome) = guard.try_io(|fd| attempt(fd.get_ref())) {
            match outcome {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }
}

/// Whether `fd` is in the state `wanted` right now.
pub(crate) fn has(fd: BorrowedFd<'_>, wanted: PollFlags) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, wanted)];
    poll(&mut fds, PollTimeout::ZERO)?;
    Ok(fds.iter().any(|fd| fd.revents().is_some_and(|now| now.intersects(wanted | PollFlags::POLLHUP))))
}
