//! Writing a process's input.
//!
//! Writers queue and each writes all it has before the next begins. Closing gives up the owner's reference:
//! a write under way still finishes, and the process sees the end of its input after it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    sync::Arc,
};

use nix::poll::PollFlags;
use tokio::{
    io::Interest,
    sync::{OwnedSemaphorePermit, Semaphore},
};

use crate::reactor::register;

use super::{Shared, attempt, state, terminal::Terminal};

/// One input stream.
#[derive(Debug)]
pub struct Input {
    sink: Sink,
    turn: Arc<Semaphore>,
}

#[derive(Debug)]
enum Sink {
    Pipe(Shared),
    Terminal(Rc<Terminal>),
}

impl Input {
    /// The agent's end of an input pipe.
    pub fn pipe(pipe: OwnedFd) -> io::Result<Rc<Self>> {
        Ok(Self::new(Sink::Pipe(register(Arc::new(pipe), Interest::WRITABLE)?)))
    }

    /// The keyboard of a terminal.
    pub fn terminal(terminal: Rc<Terminal>) -> Rc<Self> {
        Self::new(Sink::Terminal(terminal))
    }

    fn new(sink: Sink) -> Rc<Self> {
        Rc::new(Self { sink, turn: Arc::new(Semaphore::new(1)) })
    }

    /// Writes all of `data`, waiting for room; `BrokenPipe` once nobody can read it any more.
    pub async fn write_all(&self, data: Vec<u8>) -> io::Result<()> {
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(io::Error::other)?;
        let pipe = match &self.sink {
            Sink::Pipe(pipe) => pipe,
            Sink::Terminal(terminal) => return terminal.write_all(&data).await,
        };
        let mut hands = Hands { _turn: turn, data, written: 0 };
        while hands.written < hands.data.len() {
            let (back, written) = attempt(pipe, Interest::WRITABLE, hands, Hands::write).await?;
            hands = back;
            hands.written += written.unwrap_or_default();
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
            Sink::Pipe(pipe) => {
                state(pipe.get_ref().as_fd(), PollFlags::empty()).is_ok_and(|state| !state.is_empty())
            }
            Sink::Terminal(_) => false,
        }
    }
}

/// What is being written, and the turn to do so.
struct Hands {
    _turn: OwnedSemaphorePermit,
    data: Vec<u8>,
    written: usize,
}

impl Hands {
    fn write(pipe: BorrowedFd<'_>, hands: &mut Self) -> io::Result<usize> {
        Ok(nix::unistd::write(pipe, hands.data.get(hands.written..).unwrap_or_default())?)
    }
}
