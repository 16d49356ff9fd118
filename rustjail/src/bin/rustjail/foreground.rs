//! Standing in for a process until it ends: its terminal, the signals that are meant for it, its exit status.
//!
//! Everything is waited for in one poll: the process by its pidfd, which cannot be missed as SIGCHLD can.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rustjail::sys::pidfd::{self, Exit};

use crate::{console::Console, error::Error, signals::Signals};

/// Waits for the child `process`; answers its exit status as a shell has it.
pub fn attend(process: BorrowedFd<'_>, mut console: Option<Console>, signals: &Signals) -> Result<u8, Error> {
    let stdin = io::stdin();
    loop {
        let mut fds =
            vec![PollFd::new(process, PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if let Some(console) = &console {
            console.watch(&stdin, &mut fds);
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            result => result.map_err(Error::io("wait for", "the container's process"))?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        drop(fds);
        let is_ready = |index: usize| ready.get(index).copied().unwrap_or(false);
        while let Some(signal) = signals.next() {
            pass_on(signal, process, console.as_ref());
        }
        if let Some(console) = &mut console {
            console.pump(is_ready(3))?;
        }
        if is_ready(0) {
            break;
        }
    }
    if let Some(console) = &mut console {
        console.show()?;
    }
    exit_status(process)
}

/// Reaps the child `process`, which has ended or is about to.
pub fn exit_status(process: BorrowedFd<'_>) -> Result<u8, Error> {
    match pidfd::wait(process).map_err(Error::io("reap", "the container's process"))? {
        Exit::Code(code) => Ok(code as u8),
        Exit::Signal(signal) => Ok(128 + signal as u8),
    }
}

fn pass_on(signal: i32, process: BorrowedFd<'_>, console: Option<&Console>) {
    match (signal, console) {
        (libc::SIGWINCH, Some(console)) => console.resize(),
        // About us, not about it.
        (libc::SIGCHLD | libc::SIGPIPE | libc::SIGURG, _) => {}
        // One that ended meanwhile needs none.
        _ => drop(pidfd::signal(process, signal)),
    }
}
