//! Moving a raw stream's bytes between a process and its own connection.
//!
//! Pipes are spliced: the bytes never enter the agent's memory, and a worker that dies between two splices
//! loses none of them, because each is either still in the pipe or already in the socket. A terminal is copied
//! through one small buffer. A pump ends when its source ends or its destination is gone; what it then does
//! to the other side is what a shell pipeline would: end of input, or SIGPIPE. `moved` counts the bytes.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    rc::Rc,
};

use nix::{
    poll::PollFlags,
    sys::socket::{Shutdown, shutdown},
};
use rustjail::sys::pipe::splice;
use tokio::io::{Interest, unix::AsyncFd};

use crate::reactor::register;

use super::{has, input::Input, output::Output, when_ready};

/// Per system call; what a pipe or a socket holds bounds it further.
const CHUNK: usize = 1 << 20;
/// The buffer where splicing is impossible.
const BUFFER: u32 = 32 << 10;

/// Moves everything a process writes to `pipe` into `socket`, then ends the socket's stream.
pub async fn output(pipe: OwnedFd, socket: OwnedFd, moved: Rc<Cell<u64>>) -> io::Result<()> {
    let pipe = register(pipe, Interest::READABLE)?;
    let socket = register(socket, Interest::WRITABLE)?;
    relay(&pipe, &socket, &moved).await?;
    shutdown(socket.as_raw_fd(), Shutdown::Write)?;
    Ok(())
}

/// Moves everything a host writes to `socket` into `pipe`; dropping the pipe then ends the process's input.
pub async fn input(socket: OwnedFd, pipe: OwnedFd, moved: Rc<Cell<u64>>) -> io::Result<()> {
    let socket = register(socket, Interest::READABLE)?;
    let pipe = register(pipe, Interest::WRITABLE)?;
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
        look.take()?;
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
        terminal.write_all(&data).await?;
        add(&moved, data.len());
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
async fn relay(from: &AsyncFd<OwnedFd>, to: &AsyncFd<OwnedFd>, moved: &Cell<u64>) -> io::Result<()> {
    loop {
        let mut readable = from.ready(Interest::READABLE).await?;
        let mut writable = to.ready(Interest::WRITABLE).await?;
        match splice(from.get_ref().as_fd(), to.get_ref().as_fd(), CHUNK) {
            Ok(0) => return Ok(()),
            Ok(bytes) => {
                add(moved, bytes);
                tokio::task::coop::consume_budget().await;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let source_empty = !has(from.get_ref().as_fd(), PollFlags::POLLIN)?;
                let sink_full = !has(to.get_ref().as_fd(), PollFlags::POLLOUT)?;
                if source_empty {
                    readable.clear_ready();
                }
                if sink_full {
                    writable.clear_ready();
                }
                if !source_empty && !sink_full {
                    tokio::task::yield_now().await;
                }
            }
            Err(error) => return Err(error),
        }
    }
}
