//! The standard streams of the sandbox's processes: serving them by RPC, and pumping the raw ones.
//!
//! A stream that is closed or at its end gives its descriptors back at once, here and with init, so what is
//! open after a restart of the worker is exactly what was open before it.

use std::{io, os::fd::OwnedFd, rc::Rc, sync::Arc};

use super::{
    Core, Error, Output as Which, Result, StdioPorts,
    census::add,
    container::Container,
    error::failed_to,
    process::{Held, Process, Raw},
};
use crate::stdio::{
    input::Input,
    output::{Look, Output},
    pump,
    terminal::Terminal,
};

/// A host's own connections for some of the streams.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

/// The agent's ends of a process's pipes; `None` is closed.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

impl StdioPorts {
    pub(super) fn raw(self) -> Raw {
        Raw { stdin: self.stdin != 0, stdout: self.stdout != 0, stderr: self.stderr != 0 }
    }
}

/// What a read saw, and whose it is.
#[derive(Debug)]
pub(super) struct Seen {
    what: What,
    core: Rc<Core>,
    container: Rc<Container>,
    process: Rc<Process>,
    which: Which,
}

#[derive(Debug)]
enum What {
    Bytes(Look),
    /// The stream has just ended.
    End,
    /// It had ended and was closed before, or goes elsewhere.
    Closed,
}

impl Core {
    /// The connections that a request names; waits a moment for those still on their way.
    pub(super) async fn claim(&self, ports: StdioPorts) -> Result<Sockets> {
        let claim = async |port: u32| match port {
            0 => Ok(None),
            port => {
                let claimed = self.raw.claim(port).await.map(Some);
                claimed.map_err(failed_to(|| "connect a raw stream".to_owned()))
            }
        };
        Ok(Sockets {
            stdin: claim(ports.stdin).await?,
            stdout: claim(ports.stdout).await?,
            stderr: claim(ports.stderr).await?,
        })
    }

    /// Serves a process's pipes: by RPC, or from and to a connection where there is one.
    pub(super) fn serve_pipes(
        self: &Rc<Self>,
        container: &Rc<Container>,
        process: &Rc<Process>,
        ends: Ends,
        sockets: Sockets,
    ) -> io::Result<()> {
        let streams = &process.streams;
        match (ends.stdin, sockets.stdin) {
            (Some(pipe), Some(socket)) => {
                let held = [Held::Stdin, Held::RawStdin];
                self.pump(
                    container,
                    process,
                    held,
                    pump::input(socket, pipe, Rc::clone(&self.moved.stdin)),
                    false,
                );
            }
            (Some(pipe), None) if !process.raw.stdin => {
                *streams.stdin.borrow_mut() = Some(Input::pipe(pipe)?)
            }
            _ => {}
        }
        let outputs = [
            (
                ends.stdout,
                sockets.stdout,
                process.raw.stdout,
                &streams.stdout,
                [Held::Stdout, Held::RawStdout],
                &self.moved.stdout,
            ),
            (
                ends.stderr,
                sockets.stderr,
                process.raw.stderr,
                &streams.stderr,
                [Held::Stderr, Held::RawStderr],
                &self.moved.stderr,
            ),
        ];
        for (pipe, socket, raw, stream, held, moved) in outputs {
            match (pipe, socket) {
                (Some(pipe), Some(socket)) => {
                    self.pump(container, process, held, pump::output(pipe, socket, Rc::clone(moved)), true);
                }
                (Some(pipe), None) if !raw => {
                    *stream.borrow_mut() = Some(Output::pipe(pipe, Arc::clone(&self.peekers))?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Serves a terminal's master. Without a connection of its own, standard error is the terminal too.
    pub(super) fn serve_terminal(
        self: &Rc<Self>,
        container: &Rc<Container>,
        process: &Rc<Process>,
        master: OwnedFd,
        sockets: Sockets,
    ) -> io::Result<()> {
        let master = Rc::new(Terminal::new(master)?);
        let streams = &process.streams;
        let input = Input::terminal(Rc::clone(&master));
        let output = Output::terminal(Rc::clone(&master));
        *streams.terminal.borrow_mut() = Some(master);
        if let Some(socket) = sockets.stdin {
            let pump = pump::terminal_input(socket, input, Rc::clone(&self.moved.stdin));
            self.pump(container, process, [Held::RawStdin; 2], pump, false);
        } else if !process.raw.stdin {
            *streams.stdin.borrow_mut() = Some(input);
        }
        if let Some(socket) = sockets.stdout {
            let pump = pump::terminal_output(output, socket, Rc::clone(&self.moved.stdout));
            self.pump(container, process, [Held::RawStdout; 2], pump, true);
        } else if !process.raw.stdout {
            *streams.stdout.borrow_mut() = Some(Rc::clone(&output));
            *streams.stderr.borrow_mut() = Some(output);
        }
        Ok(())
    }

    /// Runs a pump, and gives back what it held when it ends.
    fn pump(
        self: &Rc<Self>,
        container: &Rc<Container>,
        process: &Rc<Process>,
        held: [Held; 2],
        pump: impl Future<Output = io::Result<()>> + 'static,
        is_output: bool,
    ) {
        let (core, container, owner) = (Rc::clone(self), Rc::clone(container), Rc::clone(process));
        process.pumping.set(process.pumping.get() + usize::from(is_output));
        let task = crate::task::spawn(async move {
            if let Err(error) = pump.await {
                slog::debug!(core.log, "a raw stream ended early";
                    "container" => &container.id, "exec" => &owner.exec_id, "error" => %error);
            }
            for held in held {
                core.release(&owner, held);
            }
            owner.pumping.set(owner.pumping.get().saturating_sub(usize::from(is_output)));
            core.forget_if_spent(&container, &owner);
        });
        process.pumps.borrow_mut().push(task.abort_handle());
    }

    /// Closes what a process that has ended left behind with nothing in it: an input nobody can read, an
    /// output at its end. What it wrote and nobody has read yet stays.
    pub(super) fn close_spent(&self, process: &Process) {
        let streams = &process.streams;
        let input = streams.stdin.borrow().clone();
        if input.is_some_and(|input| input.is_orphaned()) {
            streams.stdin.take();
            self.release(process, Held::Stdin);
        }
        for (stream, held) in [(&streams.stdout, Held::Stdout), (&streams.stderr, Held::Stderr)] {
            let output = stream.borrow().clone();
            if output.is_some_and(|output| output.is_spent()) {
                stream.take();
                self.release(process, held);
            }
        }
    }

    pub(super) async fn write_stdin(&self, id: &str, exec_id: &str, data: Vec<u8>) -> Result<u32> {
        let length = data.len();
        if data.is_empty() {
            return self.close_stdin(id, exec_id).await.map(|()| 0);
        }
        let process = self.container(id)?.process(exec_id)?;
        let stdin = process.streams.stdin.borrow().clone();
        let Some(stdin) = stdin else {
            return Err(closed("stdin", &process));
        };
        stdin.write_all(data).await.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => closed("stdin", &process),
            _ if error.raw_os_error() == Some(nix::libc::EIO) => closed("stdin", &process),
            _ => failed_to(|| format!("write the standard input of process {:?}", process.exec_id))(error),
        })?;
        add(&self.moved.stdin, length);
        Ok(u32::try_from(length).unwrap_or(u32::MAX))
    }

    pub(super) async fn close_stdin(&self, id: &str, exec_id: &str) -> Result<()> {
        let process = self.container(id)?.process(exec_id)?;
        if process.terminal {
            let stdin = process.streams.stdin.borrow().clone();
            if let Some(stdin) = stdin {
                // A terminal that nobody has open any more needs no end of input.
                let _hung_up = stdin.type_eof().await;
            }
            return Ok(());
        }
        if process.streams.stdin.take().is_some() {
            self.release(&process, Held::Stdin);
        }
        Ok(())
    }

    pub(super) async fn read_output(
        self: &Rc<Self>,
        id: &str,
        exec_id: &str,
        which: Which,
        len: u32,
    ) -> Result<(Vec<u8>, Seen)> {
        let container = self.container(id)?;
        let process = container.process(exec_id)?;
        let failed = || format!("read the output of process {:?} of container {id:?}", process.exec_id);
        let (data, what) = match process.streams.output(which) {
            None => (Vec::new(), What::Closed),
            Some(stream) => {
                let mut look = stream.look(len).await.map_err(failed_to(failed))?;
                let data = std::mem::take(&mut look.data);
                let what = if data.is_empty() { What::End } else { What::Bytes(look) };
                (data, what)
            }
        };
        let seen = Seen { what, core: Rc::clone(self), container, process, which };
        Ok((data, seen))
    }

    pub(super) fn resize_terminal(&self, id: &str, exec_id: &str, rows: u16, columns: u16) -> Result<()> {
        let process = self.container(id)?.process(exec_id)?;
        let terminal = process.streams.terminal.borrow().clone().ok_or(Error::NoTty)?;
        terminal.resize(rows, columns).map_err(failed_to(|| {
            format!("resize the terminal of process {:?} of container {id:?}", process.exec_id)
        }))
    }
}

impl Seen {
    /// The peer has the bytes: takes them out of the stream, or closes a stream that is at its end.
    pub(super) fn delivered(self) {
        let Self { what, core, container, process, which } = self;
        match what {
            What::Bytes(look) => {
                let moved = match which {
                    Which::Stdout => &core.moved.stdout,
                    Which::Stderr => &core.moved.stderr,
                };
                add(moved, look.len());
                crate::task::spawn(async move {
                    if let Err(error) = look.take().await {
                        slog::error!(core.log, "output that was delivered cannot be taken and will come again";
                            "container" => &container.id, "exec" => &process.exec_id, "error" => %error);
                    }
                });
                return;
            }
            What::End if process.terminal => {
                process.streams.close();
                core.release(&process, Held::Console);
            }
            What::End => {
                let (stream, held) = match which {
                    Which::Stdout => (&process.streams.stdout, Held::Stdout),
                    Which::Stderr => (&process.streams.stderr, Held::Stderr),
                };
                stream.take();
                core.release(&process, held);
            }
            What::Closed => {}
        }
        process.streams.end_told(which);
        core.forget_if_spent(&container, &process);
    }
}

fn closed(stream: &'static str, process: &Process) -> Error {
    Error::StreamClosed { stream, exec_id: process.exec_id.clone() }
}
