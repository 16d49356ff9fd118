//! The user's terminal: raw mode while a process in the guest owns it, and its size.
//!
//! Raw mode lasts as long as the [`RawMode`] value. It ends by its drop, so by a return, an error and an unwinding
//! panic alike; signals are turned into returns by [`crate::session`], because a process that dies of one drops nothing.

use std::{
    io::{self, IsTerminal},
    os::fd::{AsFd, OwnedFd},
};

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use terminal_size::{Height, Width, terminal_size_of};

/// A terminal in raw mode.
#[derive(Debug)]
pub struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    /// Puts the terminal on standard input into raw mode; `None` when there is none.
    pub fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let terminal = stdin.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        // Drained, so that nothing printed before loses its carriage returns.
        tcsetattr(&terminal, SetArg::TCSADRAIN, &raw)?;
        Ok(Some(Self { terminal, before }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(&self.terminal, SetArg::TCSADRAIN, &self.before);
    }
}

/// Rows and columns of the terminal the user sees, if there is one.
pub fn size() -> Option<(u16, u16)> {
    let (Width(columns), Height(rows)) =
        terminal_size_of(io::stdin()).or_else(|| terminal_size_of(io::stdout()))?;
    Some((rows, columns))
}
