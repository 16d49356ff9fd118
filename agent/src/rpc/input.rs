//! The receiving side of one connection: bytes, and how long the peer may take over a frame.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use nix::errno::Errno;
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, timeout_at},
};

use super::{
    frame::{HEADER, Header},
    limits::{INPUT_BUFFER, PROGRESS_BYTES},
};

/// A fixed buffer in front of a socket.
pub(super) struct Input<'s> {
    socket: &'s AsyncFd<OwnedFd>,
    patience: Duration,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    deadline: Option<Instant>,
}

impl<'s> Input<'s> {
    pub(super) fn new(socket: &'s AsyncFd<OwnedFd>, patience: Duration) -> Self {
        let buffer = vec![0; INPUT_BUFFER].into_boxed_slice();
        Self { socket, patience, buffer, start: 0, end: 0, deadline: None }
    }

    /// What has been received and not yet taken.
    pub(super) fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Whether there may be more than it has received.
    pub(super) fn is_full(&self) -> bool {
        self.end == self.buffer.len()
    }

    /// The header at the front, if all of it is there.
    pub(super) fn header(&self) -> Option<Header> {
        self.buffered().first_chunk::<HEADER>().map(|bytes| Header::parse(*bytes))
    }

    /// Drops up to `count` bytes from the front; returns how many there were.
    pub(super) fn consume(&mut self, count: usize) -> usize {
        let count = count.min(self.end - self.start);
        self.start += count;
        count
    }

    /// What comes next may take its own time.
    pub(super) fn reset_deadline(&mut self) {
        self.deadline = None;
    }

    /// Waits for more bytes. `false` is the end of the stream.
    pub(super) async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let started = self.end > 0 || self.deadline.is_some();
        let deadline = started.then(|| *self.deadline.get_or_insert(Instant::now() + self.patience));
        let free = self.buffer.get_mut(self.end..).unwrap_or_default();
        let count = receive(self.socket, free, deadline).await?;
        self.end += count;
        self.extend_deadline(count);
        Ok(count > 0)
    }

    /// Fills `body`, from the buffer first and then straight from the socket.
    pub(super) async fn read_body(&mut self, body: &mut [u8]) -> io::Result<()> {
        let ready = self.buffered();
        let mut filled = ready.len().min(body.len());
        if let (Some(to), Some(from)) = (body.get_mut(..filled), ready.get(..filled)) {
            to.copy_from_slice(from);
        }
        self.consume(filled);
        self.deadline.get_or_insert(Instant::now() + self.patience);
        while let Some(rest @ [_, ..]) = body.get_mut(filled..) {
            let count = receive(self.socket, rest, self.deadline).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += count;
            self.extend_deadline(count);
        }
        Ok(())
    }

    /// Reads `count` bytes away, in place.
    pub(super) async fn discard(&mut self, mut count: usize) -> io::Result<()> {
        self.deadline.get_or_insert(Instant::now() + self.patience);
        count -= self.consume(count);
        while count > 0 {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            count -= self.consume(count);
        }
        Ok(())
    }

    fn extend_deadline(&mut self, received: usize) {
        if let Some(deadline) = self.deadline.as_mut() {
            *deadline += Duration::from_micros(received as u64 * 1_000_000 / PROGRESS_BYTES as u64);
        }
    }
}

/// One read, when there is something to read.
async fn receive(socket: &AsyncFd<OwnedFd>, into: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
    loop {
        let mut ready = match deadline {
            Some(deadline) => {
                timeout_at(deadline, socket.readable()).await.map_err(|_| io::ErrorKind::TimedOut)??
            }
            None => socket.readable().await?,
        };
        match nix::unistd::read(socket.as_fd(), into) {
            Ok(count) => {
                // A short read has emptied the socket: what comes later is a new event. This saves the read
                // that would only say EAGAIN, one call in three.
                if count < into.len() {
                    ready.clear_ready();
                }
                return Ok(count);
            }
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
