//! The master side of a process's terminal: its input, its output, its size.
//!
//! What is read from a master is gone from it, so the bytes of the last look are kept here until they are
//! delivered; a look that was not delivered is repeated from them. `EIO` means that no process has the
//! terminal open any more: the end of the stream.

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::termios::{SpecialCharacterIndices, tcgetattr},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::reactor::register;

use super::{set_nonblocking, when_ready};

/// More than a terminal ever returns at once.
const READ: usize = 8192;

/// ^D, what every terminal is born with.
const EOT: u8 = 4;

/// A terminal's master side.
#[derive(Debug)]
pub struct Terminal {
    master: AsyncFd<OwnedFd>,
    unsent: RefCell<Vec<u8>>,
}

impl Terminal {
    /// Takes over a master.
    pub fn new(master: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&master)?;
        Ok(Self {
            master: register(master, Interest::READABLE | Interest::WRITABLE)?,
            unsent: RefCell::default(),
        })
    }

    /// Waits for output and copies up to `len` bytes of it; empty at the end of the stream.
    pub(super) async fn look(&self, len: usize) -> io::Result<Vec<u8>> {
        if self.unsent.borrow().is_empty() {
            let read = when_ready(&self.master, Interest::READABLE, |fd| {
                let mut buffer = vec![0; READ];
                match nix::unistd::read(fd, &mut buffer) {
                    Ok(read) => {
                        buffer.truncate(read);
                        Ok(buffer)
                    }
                    Err(Errno::EIO) => Ok(Vec::new()),
                    Err(errno) => Err(errno.into()),
                }
            });
            *self.unsent.borrow_mut() = read.await?;
        }
        Ok(self.unsent.borrow().iter().copied().take(len).collect())
    }

    /// The first `len` bytes of the last look have been delivered.
    pub(super) fn take(&self, len: usize) {
        let mut unsent = self.unsent.borrow_mut();
        let len = len.min(unsent.len());
        unsent.drain(..len);
        unsent.shrink_to(0);
    }

    /// Types all of `data`.
    pub(super) async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        let mut rest = data;
        while !rest.is_empty() {
            let write = |fd: &OwnedFd| Ok(nix::unistd::write(fd, rest)?);
            let written = when_ready(&self.master, Interest::WRITABLE, write).await?;
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Types the end-of-file character. Closing the master instead would take the output away with the input.
    pub(super) async fn type_eof(&self) -> io::Result<()> {
        let eof = tcgetattr(self.master.get_ref())
            .ok()
            .and_then(|settings| settings.control_chars.get(SpecialCharacterIndices::VEOF as usize).copied())
            .unwrap_or(EOT);
        self.write_all(&[eof]).await
    }

    /// Changes the size; the foreground process group gets SIGWINCH.
    pub fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        rustjail::sys::pty::set_size(self.master.get_ref().as_fd(), rows, columns)
    }
}
