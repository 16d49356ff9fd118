//! The descriptor table as a whole.

use std::{
    ffi::c_uint,
    io,
    os::{
        fd::{FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
};

/// Closes every descriptor from `first` to `last`, both included.
///
/// Only for a new process's start: whatever owns one of them in this process owns nothing afterwards.
pub(crate) fn close_range(first: u32, last: u32) -> io::Result<()> {
    range(first, last, 0)
}

/// Makes every descriptor from `first` on close at execve.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    range(first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// The descriptor `number`, if this process was started with it and nobody has asked before; it closes at execve
/// from now on.
pub fn inherited(number: i32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: takes integers only.
    let flags = super::check(unsafe { libc::fcntl(number, libc::F_GETFD) }.into())?;
    if number <= libc::STDERR_FILENO || flags & libc::c_long::from(libc::FD_CLOEXEC) != 0 {
        return Ok(None);
    }
    // SAFETY: takes integers only.
    super::check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }.into())?;
    // SAFETY: it is open, and whatever this process opens closes at execve from the beginning, as this one does
    // now. So it came with the start, and neither has an owner nor is given a second one.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(number) }))
}

/// Has `command` start with nothing but its standard streams, whatever this process was itself started with.
pub(crate) fn give_standard_streams_only(command: &mut Command) {
    // SAFETY: between fork and exec of a process that may have threads, this makes one system call and touches
    // no memory but its own stack.
    unsafe { command.pre_exec(|| close_on_exec_from(3)) };
}

fn range(first: u32, last: u32, flags: c_uint) -> io::Result<()> {
    // SAFETY: takes integers only; the callers' contract is about ownership, not memory.
    super::check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })?;
    Ok(())
}
