//! Standard streams of container processes.
//!
//! Each stream is owned once, non-blocking, and is touched only when somebody asks: nothing is read ahead, so
//! a workload that nobody listens to is held by its own pipe and costs the agent no memory. Output is peeked
//! at and leaves the pipe only when it has been delivered ([`output`]); a terminal cannot be peeked at and
//! keeps its last unsent bytes ([`terminal`]). Raw streams ([`raw`], [`pump`]) bypass RPC altogether.
//!
//! **A pipe's lock belongs to the workload.** Linux holds it while splice(2) waits for the file or socket at the
//! other side, and whoever reads, writes or closes the pipe then sleeps where no signal wakes him, non-blocking or
//! not. So whatever takes that lock is done on the pool ([`crate::task::on_stream`]), one thing at a time for
//! each stream; only poll(2), which does not, is called here.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::task::on_stream;

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
    /// A pipe that the process reads from, of `size` bytes where the kernel allows it.
    pub fn input(size: u32) -> io::Result<Self> {
        let (read, write) = pipe(size)?;
        set_nonblocking(&write)?;
        Ok(Self { ours: write, theirs: read })
    }

    /// A pipe that the process writes to, of `size` bytes where the kernel allows it.
    pub fn output(size: u32) -> io::Result<Self> {
        let (read, write) = pipe(size)?;
        set_nonblocking(&read)?;
        Ok(Self { ours: read, theirs: write })
    }
}

fn pipe(size: u32) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    // A size over fs.pipe-max-size is a wish that cannot be met, not a reason to run no container.
    let _refused = rustjail::sys::pipe::set_size(read.as_fd(), size as usize);
    Ok((read, write))
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

/// A pipe that a workload has the other end of.
pub(crate) type Shared = AsyncFd<Arc<OwnedFd>>;

/// Waits until `pipe` is ready for `interest`, has `attempt` made on the pool, and again while it answers
/// `WouldBlock`. What is in `hands` goes with it and comes back with the outcome: a turn held there is not
/// free before the pool is, whoever stops waiting. Nothing comes of a pipe that is empty and has no writer left.
pub(crate) async fn attempt<S: Send + 'static, T: Send + 'static>(
    pipe: &Shared,
    interest: Interest,
    mut hands: S,
    attempt: fn(BorrowedFd<'_>, &mut S) -> io::Result<T>,
) -> io::Result<(S, Option<T>)> {
    let wanted = if interest.is_readable() { PollFlags::POLLIN } else { PollFlags::POLLOUT };
    loop {
        let mut ready = pipe.ready(interest).await?;
        match state(pipe.get_ref().as_fd(), wanted)? {
            PollFlags::POLLHUP => return Ok((hands, None)),
            state if state.is_empty() => {
                ready.clear_ready();
                continue;
            }
            _ => {}
        }
        let fd = Arc::clone(pipe.get_ref());
        let work = move || {
            let outcome = attempt(fd.as_fd(), &mut hands);
            (hands, outcome)
        };
        let (back, outcome) = on_stream(work).await?;
        hands = back;
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome.map(|value| (hands, Some(value))),
        }
    }
}

/// The state of `fd` right now: what of `wanted` holds, and POLLHUP and POLLERR, which always count.
pub(crate) fn state(fd: BorrowedFd<'_>, wanted: PollFlags) -> io::Result<PollFlags> {
    let mut fds = [PollFd::new(fd, wanted)];
    poll(&mut fds, PollTimeout::ZERO)?;
    Ok(fds.first().and_then(PollFd::revents).unwrap_or(PollFlags::empty()))
}
