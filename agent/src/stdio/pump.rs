//! Moving a raw stream's bytes between a process and its own connection.
//!
//! Pipes are spliced: the bytes never enter the agent's memory, and a worker that dies between two splices
//! loses none of them, because each is either still in the pipe or already in the socket. A terminal is copied
//! through one small buffer. A pump ends when its source ends or its destination is gone; what it then does
//! to the other side is what a shell pipeline would: end of input, or SIGPIPE. `moved` counts the bytes.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    rc::Rc,
    sync::Arc,
};

use nix::{
    poll::PollFlags,
    sys::socket::{Shutdown, shutdown},
};
use rustjail::sys::pipe::splice;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{reactor::register, task::on_stream};

use super::{Shared, input::Input, output::Output, state, when_ready};

/// Per system call; what a pipe or a socket holds bounds it further.
const CHUNK: usize = 1 << 20;
/// System calls that one turn on the pool makes at most.
const CALLS: usize = 64;
/// The buffer where splicing is impossible.
const BUFFER: u32 = 32 << 10;

/// Moves everything a process writes to `pipe` into `socket`, then ends the socket's stream.
pub async fn output(pipe: OwnedFd, socket: OwnedFd, moved: Rc<Cell<u64>>) -> io::Result<()> {
    let pipe = register(Arc::new(pipe), Interest::READABLE)?;
    let socket = register(Arc::new(socket), Interest::WRITABLE)?;
    relay(&pipe, &socket, &moved).await?;
    shutdown(socket.as_raw_fd(), Shutdown::Write)?;
    Ok(())
}

/// Moves everything a host writes to `socket` into `pipe`; dropping the pipe then ends the process's input.
pub async fn input(socket: OwnedFd, pipe: OwnedFd, moved: Rc<Cell<u64>>) -> io::Result<()> {
    let socket = register(Arc::new(socket), Interest::READABLE)?;
    let pipe = register(Arc::new(pipe), Interest::WRITABLE)?;
    relay(&socket, &pipe, &moved).await
}

/// Copies what a terminal shows into `socket`.
pub async fn terminal_output(terminal: Rc<Output>, socket: OwnedFd, moved: Rc<Cell<u64>>) -> io::Result<()> {
    let socket = register(socket, Interest::WRITABLE)?;
    loop {
        let look = terminal.look(BUFFER).await?;
        if look.data.is_empty() {
            shutdown(socket.as_raw_fd(), Shutdown::Write)?;
            return Ok(());
        }
        write_all(&socket, &look.data).await?;
        add(&moved, look.data.len());
        look.take().await?;
    }
}

/// Types what comes from `socket`, then the end-of-file character.
pub async fn terminal_input(socket: OwnedFd, terminal: Rc<Input>, moved: Rc<Cell<u64>>) -> io::Result<()> {
    let socket = register(socket, Interest::READABLE)?;
    loop {
        let data = when_ready(&socket, Interest::READABLE, |fd| {
            let mut data = vec![0; BUFFER as usize];
            let read = nix::unistd::read(fd, &mut data)?;
            data.truncate(read);
            Ok(data)
        });
        let data = data.await?;
        if data.is_empty() {
            return terminal.type_eof().await.map(|_typed| ());
        }
        let length = data.len();
        terminal.write_all(data).await?;
        add(&moved, length);
    }
}

fn add(moved: &Cell<u64>, bytes: usize) {
    moved.set(moved.get().wrapping_add(bytes as u64));
}

async fn write_all(socket: &AsyncFd<OwnedFd>, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let write = |fd: &OwnedFd| Ok(nix::unistd::write(fd, data)?);
        let written = when_ready(socket, Interest::WRITABLE, write).await?;
        data = data.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Splices until the source ends. `EAGAIN` does not say which side it came from, so each is asked.
async fn relay(from: &Shared, to: &Shared, moved: &Cell<u64>) -> io::Result<()> {
    loop {
        let mut readable = from.ready(Interest::READABLE).await?;
        let mut writable = to.ready(Interest::WRITABLE).await?;
        let (source, sink) = (Arc::clone(from.get_ref()), Arc::clone(to.get_ref()));
        let (bytes, end) = on_stream(move || splice_on(source.as_fd(), sink.as_fd())).await?;
        add(moved, bytes);
        match end {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if state(from.get_ref().as_fd(), PollFlags::POLLIN)?.is_empty() {
                    readable.clear_ready();
                }
                if state(to.get_ref().as_fd(), PollFlags::POLLOUT)?.is_empty() {
                    writable.clear_ready();
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Splices while there is something to move and room for it: how much was moved in all, and the last outcome.
fn splice_on(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> (usize, io::Result<usize>) {
    let mut moved = 0;
    let mut last = Ok(0);
    for _ in 0..CALLS {
        last = splice(from, to, CHUNK);
        match last {
            Ok(bytes @ 1..) => moved += bytes,
            _ => break,
        }
    }
    (moved, last)
}
