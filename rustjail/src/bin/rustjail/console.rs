//! The master of a container's terminal: handed to whoever asked for it, or driven from our own terminal.
//!
//! While it is driven, our terminal is raw, so that the container's does the editing; it is put back when the
//! [`Console`] goes. The master is non-blocking: a program that does not read must not keep its output from us.

use std::{
    fs::File,
    io::{self, IsTerminal, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags},
    sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr},
};
use rustjail::sys::{pty, scm};

use crate::error::Error;

/// Hands `master` to whoever listens at `socket`.
pub fn send(socket: &str, name: &[u8], master: BorrowedFd<'_>) -> Result<(), Error> {
    let stream = UnixStream::connect(socket).map_err(Error::io("connect to", socket))?;
    scm::send(stream.as_fd(), name, &[master]).map(drop).map_err(Error::io("send a descriptor to", socket))
}

/// A container's terminal, driven from ours.
#[derive(Debug)]
pub struct Console {
    /// `None` once every slave is closed.
    master: Option<File>,
    /// Whether our standard input may have more.
    input: bool,
    /// What was typed and not taken yet.
    typed: Vec<u8>,
    /// Our terminal as it was.
    saved: Option<Termios>,
}

impl Console {
    /// Begins to drive `master`.
    pub fn new(master: OwnedFd) -> Result<Self, Error> {
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(Error::io("use", "the terminal"))?;
        let mut console = Self { master: Some(master.into()), input: true, typed: Vec::new(), saved: None };
        console.resize();
        if io::stdin().is_terminal() {
            let before = tcgetattr(io::stdin()).map_err(Error::io("read the settings of", "the terminal"))?;
            let mut raw = before.clone();
            cfmakeraw(&mut raw);
            tcsetattr(io::stdin(), SetArg::TCSANOW, &raw).map_err(Error::io("make raw", "the terminal"))?;
            console.saved = Some(before);
        }
        Ok(console)
    }

    /// Gives the container's terminal the size of ours, if we have one.
    pub fn resize(&self) {
        if let (Some(master), Ok((rows, columns))) = (&self.master, pty::size(io::stdin().as_fd())) {
            let _ = pty::set_size(master.as_fd(), rows, columns);
        }
    }

    /// What there is to wait for.
    pub fn watch<'fd>(&'fd self, stdin: &'fd io::Stdin, fds: &mut Vec<PollFd<'fd>>) {
        let Some(master) = &self.master else { return };
        let mut flags = PollFlags::POLLIN;
        if !self.typed.is_empty() {
            flags |= PollFlags::POLLOUT;
        }
        fds.push(PollFd::new(master.as_fd(), flags));
        if self.input && self.typed.is_empty() {
            fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
        }
    }

    /// Moves what can be moved; `typed` tells that our standard input has something.
    pub fn pump(&mut self, typed: bool) -> Result<(), Error> {
        if typed {
            let mut buffer = [0; 4096];
            // Past the standard library's buffer, which poll cannot see.
            match nix::unistd::read(io::stdin(), &mut buffer) {
                Ok(length @ 1..) => self.typed.extend_from_slice(buffer.get(..length).unwrap_or_default()),
                Err(nix::Error::EINTR | nix::Error::EAGAIN) => {}
                Ok(_) | Err(_) => self.input = false,
            }
        }
        if let (Some(master), false) = (&mut self.master, self.typed.is_empty()) {
            let taken = master.write(&self.typed).unwrap_or_default();
            self.typed.drain(..taken);
        }
        self.show()
    }

    /// Copies what the container wrote.
    pub fn show(&mut self) -> Result<(), Error> {
        let mut buffer = [0; 16 * 1024];
        while let Some(master) = &mut self.master {
            match master.read(&mut buffer) {
                Ok(length @ 1..) => {
                    let mut stdout = io::stdout().lock();
                    stdout
                        .write_all(buffer.get(..length).unwrap_or_default())
                        .and_then(|()| stdout.flush())
                        .map_err(Error::io("write to", "standard output"))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // EIO is a master's end of file.
                Ok(_) | Err(_) => self.master = None,
            }
        }
        Ok(())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if let Some(before) = &self.saved {
            let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, before);
        }
    }
}
