//! Pseudo-terminals, from a multiplexer that was opened by the caller.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

/// Lets the slave of `master` be opened.
pub fn unlock(master: BorrowedFd<'_>) -> io::Result<()> {
    let locked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int.
    let result =
        unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK as libc::Ioctl, &raw const locked) };
    super::check(result.into())?;
    Ok(())
}

/// Opens the slave of `master` without looking any path up (CVE-2025-52565).
pub fn open_slave(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes the open flags as an integer.
    super::owned(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER as libc::Ioctl, flags) }.into())
}

/// Sets the size of a terminal in characters.
pub fn set_size(terminal: BorrowedFd<'_>, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize.
    let result =
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ as libc::Ioctl, &raw const size) };
    super::check(result.into())?;
    Ok(())
}

/// The size of a terminal in characters: rows and columns.
pub fn size(terminal: BorrowedFd<'_>) -> io::Result<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ stores one winsize.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ as libc::Ioctl, &raw mut size) };
    super::check(result.into())?;
    Ok((size.ws_row, size.ws_col))
}

/// Makes `terminal` the controlling terminal of the caller, which leads a session that has none.
pub fn set_controlling(terminal: BorrowedFd<'_>) -> io::Result<()> {
    let steal: libc::c_int = 0;
    // SAFETY: TIOCSCTTY takes an integer.
    super::check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY as libc::Ioctl, steal) }.into())?;
    Ok(())
}
