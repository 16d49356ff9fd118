//! Reading a process's output.
//!
//! ```text
//!   idle --look--> looked (the turn is held) --delivered--> bytes taken --> idle
//!                        \--dropped--> nothing taken -------------------> idle
//! ```
//!
//! One reader has the turn until its bytes are delivered or given up; others queue in order. The end of a
//! stream is what the kernel says it is: the last writer has closed it and nothing is left. No timer and no
//! process exit has a part in it.

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

use crate::{reactor::register, task::on_stream};

use super::{MAX_READ, Shared, attempt, peek::Peekers, state, terminal::Terminal};

/// One output stream.
#[derive(Debug)]
pub struct Output {
    source: Source,
    turn: Arc<Semaphore>,
}

#[derive(Debug)]
enum Source {
    Pipe { pipe: Shared, peekers: Arc<Peekers> },
    Terminal(Rc<Terminal>),
}

impl Output {
    /// The agent's end of an output pipe.
    pub fn pipe(pipe: OwnedFd, peekers: Arc<Peekers>) -> io::Result<Rc<Self>> {
        let pipe = register(Arc::new(pipe), Interest::READABLE)?;
        Ok(Self::new(Source::Pipe { pipe, peekers }))
    }

    /// What a terminal shows.
    pub fn terminal(terminal: Rc<Terminal>) -> Rc<Self> {
        Self::new(Source::Terminal(terminal))
    }

    fn new(source: Source) -> Rc<Self> {
        Rc::new(Self { source, turn: Arc::new(Semaphore::new(1)) })
    }

    /// Waits for the turn and for output, and looks at up to `len` bytes (at least 1, at most [`MAX_READ`]).
    /// No memory is held while waiting.
    pub async fn look(self: &Rc<Self>, len: u32) -> io::Result<Look> {
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(io::Error::other)?;
        let len = usize::try_from(len).unwrap_or(MAX_READ).clamp(1, MAX_READ);
        let (turn, data) = match &self.source {
            Source::Pipe { pipe, peekers } => {
                let hands = (turn, Arc::clone(peekers), len);
                let look =
                    |pipe: BorrowedFd<'_>, hands: &mut (_, Arc<Peekers>, usize)| hands.1.look(pipe, hands.2);
                let ((turn, ..), data) = attempt(pipe, Interest::READABLE, hands, look).await?;
                (turn, data.unwrap_or_default())
            }
            Source::Terminal(terminal) => (turn, terminal.look(len).await?),
        };
        Ok(Look { len: data.len(), data, output: Rc::clone(self), turn })
    }

    /// Whether the stream is at its end with nothing left to deliver, and nobody is about to be told so.
    pub fn is_spent(&self) -> bool {
        match &self.source {
            Source::Pipe { pipe, .. } if self.turn.available_permits() > 0 => {
                state(pipe.get_ref().as_fd(), PollFlags::POLLIN)
                    .is_ok_and(|state| state == PollFlags::POLLHUP)
            }
            // A terminal cannot be asked without taking what it says.
            Source::Pipe { .. } | Source::Terminal(_) => false,
        }
    }
}

/// Bytes seen but not taken, and the turn at the stream.
#[derive(Debug)]
pub struct Look {
    /// The bytes; empty at the end of the stream.
    pub data: Vec<u8>,
    len: usize,
    output: Rc<Output>,
    turn: OwnedSemaphorePermit,
}

impl Look {
    /// How many bytes were seen.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the stream is at its end.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the bytes out of the stream; only then the turn ends.
    pub async fn take(self) -> io::Result<()> {
        let Self { len, output, turn, .. } = self;
        match &output.source {
            Source::Pipe { pipe, peekers } => {
                let (pipe, peekers) = (Arc::clone(pipe.get_ref()), Arc::clone(peekers));
                on_stream(move || {
                    let taken = peekers.take(pipe.as_fd(), len);
                    drop(turn);
                    taken
                })
                .await?
            }
            Source::Terminal(terminal) => {
                terminal.take(len);
                Ok(())
            }
        }
    }
}
