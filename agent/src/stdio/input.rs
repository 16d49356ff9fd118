//! Writing a process's input.
//!
//! Writers queue and each writes all it has before the next begins. Closing gives up the owner's reference:
//! a write under way still finishes, and the process sees the end of its input after it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
};

use nix::poll::PollFlags;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Semaphore,
};

use crate::reactor::register;

use super::{has, terminal::Terminal, when_ready};

/// One input stream.
#[derive(Debug)]
pub struct Input {
    sink: Sink,
    turn: Semaphore,
}

#[derive(Debug)]
enum Sink {
    Pipe(AsyncFd<OwnedFd>),
    Terminal(Rc<Terminal>),
}

impl Input {
    /// The agent's end of an input pipe.
    pub fn pipe(pipe: OwnedFd) -> io::Result<Rc<Self>> {
        Ok(Self::new(Sink::Pipe(register(pipe, Interest::WRITABLE)?)))
    }

    /// The keyboard of a terminal.
    pub fn terminal(terminal: Rc<Terminal>) -> Rc<Self> {
        Self::new(Sink::Terminal(terminal))
    }

    fn new(sink: Sink) -> Rc<Self> {
        Rc::new(Self { sink, turn: Semaphore::new(1) })
    }

    /// Writes all of `data`, waiting for room; `BrokenPipe` once nobody can read it any more.
    pub async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        let _turn = self.turn.acquire().await.map_err(io::Error::other)?;
        let pipe = match &self.sink {
            Sink::Pipe(pipe) => pipe,
            Sink::Terminal(terminal) => return terminal.write_all(data).await,
        };
        let mut rest = data;
        while !rest.is_empty() {
            let write = |fd: &OwnedFd| Ok(nix::unistd::write(fd, rest)?);
            let written = when_ready(pipe, Interest::WRITABLE, write).await?;
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// On a terminal types the end-of-file character and answers true; a pipe ends when it is dropped.
    pub async fn type_eof(&self) -> io::Result<bool> {
        let _turn = self.turn.acquire().await.map_err(io::Error::other)?;
        match &self.sink {
            Sink::Pipe(_) => Ok(false),
            Sink::Terminal(terminal) => terminal.type_eof().await.map(|()| true),
        }
    }

    /// Whether no process can read it any more.
    pub fn is_orphaned(&self) -> bool {
        match &self.sink {
            Sink::Pipe(pipe) => has(pipe.get_ref().as_fd(), PollFlags::POLLERR).unwrap_or(false),
            Sink::Terminal(_) => false,
        }
    }
}
