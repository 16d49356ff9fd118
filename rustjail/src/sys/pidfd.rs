//! Processes by descriptor, which cannot be mistaken for another process as a number can.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this status.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

/// Refers to the process `pid` of this PID namespace; ESRCH when there is none.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let flags: libc::c_uint = 0;
    // SAFETY: takes integers only.
    super::owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) })
}

/// A copy of the descriptor `number` of `process`, which the caller must be allowed to trace.
pub fn take_fd(process: BorrowedFd<'_>, number: i32) -> io::Result<OwnedFd> {
    let flags: libc::c_uint = 0;
    // SAFETY: takes integers only.
    super::owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, flags) })
}

/// Sends `signal`; 0 only asks whether one could be sent.
pub fn signal(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let flags: libc::c_uint = 0;
    // SAFETY: a null siginfo makes the kernel fill it in as kill(2) does.
    super::check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            ptr::null::<libc::siginfo_t>(),
            flags,
        )
    })?;
    Ok(())
}

/// Waits for the child `process` to end and reaps it.
pub fn wait(process: BorrowedFd<'_>) -> io::Result<Exit> {
    loop {
        match wait_with(process, 0) {
            Ok(Some(exit)) => return Ok(exit),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reaps the child `process` if it has ended.
pub fn try_wait(process: BorrowedFd<'_>) -> io::Result<Option<Exit>> {
    wait_with(process, libc::WNOHANG)
}

fn wait_with(process: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<Option<Exit>> {
    // SAFETY: siginfo_t is plain data, for which all zeroes is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // __WALL: a child made with CLONE_PARENT may have no exit signal.
    let flags = libc::WEXITED | libc::__WALL | flags;
    // SAFETY: `info` outlives the call.
    let result =
        unsafe { libc::waitid(libc::P_PIDFD, process.as_raw_fd() as libc::id_t, &raw mut info, flags) };
    super::check(result.into())?;
    // SAFETY: waitid fills the SIGCHLD fields, or leaves the zeroes above when nothing has ended.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok(match (pid, info.si_code) {
        (0, _) => None,
        (_, libc::CLD_EXITED) => Some(Exit::Code(status)),
        _ => Some(Exit::Signal(status)),
    })
}
