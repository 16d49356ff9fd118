//! `accept4(2)` on a listener of any address family.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use nix::sys::socket::{SockFlag, accept4};

/// Takes the next connection, non-blocking and close-on-exec.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let socket = accept4(listener.as_raw_fd(), SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: accept4 has just made this descriptor and nothing else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}
