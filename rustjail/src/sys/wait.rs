//! Reaping.
//!
//! nix's `waitid` has no name for the real-time signals and turns a status that carries one into EINVAL, after the
//! process is reaped and its status lost. This one cannot fail to tell.

use std::io;

/// A process that was reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaped {
    /// In the caller's PID namespace.
    pub pid: i32,
    /// The exit code, or 128 + the signal's number.
    pub status: i32,
}

/// Reaps one child that has ended, whatever its exit signal, if there is one. ECHILD: no child is left.
pub fn reap() -> io::Result<Option<Reaped>> {
    // SAFETY: siginfo_t is plain data, for which all zeros is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: `info` is valid for the kernel to write for the length of the call.
    super::check(unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) }.into())?;
    // SAFETY: waitid succeeded, so the union holds the fields of SIGCHLD, or the zeros from above.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    let status = if info.si_code == libc::CLD_EXITED { status } else { 128 + status };
    Ok(Some(Reaped { pid, status }))
}
