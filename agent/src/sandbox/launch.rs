//! What creating a container and executing a process have in common: descriptors that outlive the worker,
//! the launch itself, and listening to what the new process reports.
//!
//! Order is the invariant. The journal names a process before it can exist, init holds the worker's ends of
//! its streams before anybody else holds the other ends, and only then is the launcher asked.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    sync::Arc,
};

use rustjail::{
    compile::Stdio,
    launch::Launch,
    sync::{self, Report},
};
use tokio::io::Interest;

use super::{
    Core, Error, Result,
    container::Container,
    error::failed_to,
    process::{Held, Keys, Process},
    streams::{Ends, Sockets},
};
use crate::{
    reactor::register,
    stdio::{Pipe, when_ready},
    supervisor::LaunchError,
};

/// What a pipe holds, in bytes, where nothing else is configured: more than the kernel's 64 KiB, so that one turn
/// on the pool and one call move more.
const PIPE: u32 = 256 << 10;
/// The same of a raw stream: so much that the process and the pump seldom wait for each other. It is the most
/// that Linux gives to anybody by default.
const RAW_PIPE: u32 = 1 << 20;

/// The new process's ends of everything.
#[derive(Debug)]
pub(super) struct TheirEnds {
    pub(super) stdio: Stdio,
    pub(super) sync: OwnedFd,
    /// A terminal's raw connections: they wait for its master.
    pub(super) sockets: Sockets,
}

/// What a container's init waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// The hooks of its creation.
    ForHooks,
    /// The start call.
    ForStart,
}

impl Core {
    /// A range of keys that no process has had.
    pub(super) fn next_keys(&self) -> Keys {
        let keys = self.last_key.get().wrapping_add(Keys::STRIDE);
        self.last_key.set(keys);
        Keys(keys)
    }

    /// Has init hold a copy of `fd` for `process`. What it gets before it is made need not be there before it either.
    pub(super) fn hold(&self, process: &Process, held: Held, fd: impl AsFd) -> Result<()> {
        let (key, fd) = (process.keys.of(held), fd.as_fd());
        let stored = match process.pid.get() {
            0 => self.supervisor.store_for_launch(key, fd),
            _ => self.supervisor.store(key, fd),
        };
        stored.map_err(failed_to(|| {
            format!("give init the {held:?} descriptor of process {:?} to hold", process.exec_id)
        }))?;
        process.note_held(held, true);
        Ok(())
    }

    /// Has init close its copy.
    pub(super) fn release(&self, process: &Process, held: Held) {
        if process.note_held(held, false)
            && let Err(error) = self.supervisor.forget(process.keys.of(held))
        {
            slog::warn!(self.log, "init cannot be told to close a descriptor"; "error" => %error);
        }
    }

    /// Drops everything of `process` that is still open, here and with init.
    pub(super) fn release_all(&self, process: &Process) {
        for pump in process.pumps.take() {
            pump.abort();
        }
        process.pumping.set(0);
        process.pidfd.take();
        process.sync.take();
        process.streams.close();
        for held in Held::ALL {
            self.release(process, held);
        }
    }

    /// Makes the streams and the sync pair of `process`, and has init hold the agent's ends.
    pub(super) fn outfit(
        self: &Rc<Self>,
        container: &Rc<Container>,
        process: &Rc<Process>,
        sockets: Sockets,
    ) -> Result<TheirEnds> {
        let failed = || format!("make the streams of process {:?}", process.exec_id);
        let (ours, sync) = sync::pair().map_err(failed_to(failed))?;
        self.hold(process, Held::Sync, &ours)?;
        let ours = register(ours, Interest::READABLE).map_err(failed_to(failed))?;
        *process.sync.borrow_mut() = Some(Rc::new(ours));
        self.hold_sockets(process, &sockets)?;
        if process.terminal {
            return Ok(TheirEnds { stdio: Stdio::Terminal, sync, sockets });
        }
        let size = |raw: bool| self.pipe_size.unwrap_or(if raw { RAW_PIPE } else { PIPE });
        let stdin = Pipe::input(size(process.raw.stdin)).map_err(failed_to(failed))?;
        let stdout = Pipe::output(size(process.raw.stdout)).map_err(failed_to(failed))?;
        let stderr = Pipe::output(size(process.raw.stderr)).map_err(failed_to(failed))?;
        self.hold(process, Held::Stdin, &stdin.ours)?;
        self.hold(process, Held::Stdout, &stdout.ours)?;
        self.hold(process, Held::Stderr, &stderr.ours)?;
        let ours = Ends { stdin: Some(stdin.ours), stdout: Some(stdout.ours), stderr: Some(stderr.ours) };
        self.serve_pipes(container, process, ours, sockets).map_err(failed_to(failed))?;
        let stdio = Stdio::Streams { stdin: stdin.theirs, stdout: stdout.theirs, stderr: stderr.theirs };
        Ok(TheirEnds { stdio, sync, sockets: Sockets::default() })
    }

    fn hold_sockets(&self, process: &Process, sockets: &Sockets) -> Result<()> {
        let all = [
            (Held::RawStdin, &sockets.stdin),
            (Held::RawStdout, &sockets.stdout),
            (Held::RawStderr, &sockets.stderr),
        ];
        for (held, socket) in all {
            if let Some(socket) = socket {
                self.hold(process, held, socket)?;
            }
        }
        Ok(())
    }

    /// Has the process made; from here on its exit finds it.
    pub(super) async fn launch(
        &self,
        container: &Rc<Container>,
        process: &Rc<Process>,
        launch: Launch,
    ) -> Result<()> {
        let _bracket = self.exits.launching();
        process.maybe_made.set(true);
        let outcome = self.supervisor.launch(launch).await;
        process.maybe_made.set(matches!(outcome, Err(LaunchError::Unreachable(_))));
        let spawned = outcome?;
        process.pid.set(spawned.pid);
        let pidfd = Arc::new(spawned.pidfd);
        *process.pidfd.borrow_mut() = Some(Arc::clone(&pidfd));
        self.watch(container, process);
        if process.exit.get().is_none() {
            self.hold(process, Held::Pidfd, &pidfd)?;
        }
        // A container whose creation is under way is undone by the next worker, whoever its init is.
        if Rc::ptr_eq(process, &container.init) { Ok(()) } else { self.record(container) }
    }

    /// Follows what a new process reports until it waits (an init) or the end (execve has succeeded).
    pub(super) async fn await_report(
        self: &Rc<Self>,
        container: &Rc<Container>,
        process: &Rc<Process>,
        sockets: &mut Sockets,
    ) -> Result<Option<Waits>> {
        let Some(sync) = process.sync.borrow().clone() else {
            return Ok(None);
        };
        loop {
            let report = when_ready(&sync, Interest::READABLE, |fd| sync::receive(fd.as_fd())).await;
            if report.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset) {
                process.exit.wait().await;
                // It was killed before it acted on what it was last told: its groups, or its start.
                return if process.launched.get() { Err(container.wrong_state("start")) } else { Ok(None) };
            }
            let report =
                report.map_err(failed_to(|| format!("hear from the new process {:?}", process.exec_id)))?;
            match report {
                None => return Ok(None),
                Some(Report::Hooks) => return Ok(Some(Waits::ForHooks)),
                Some(Report::Ready) => return Ok(Some(Waits::ForStart)),
                Some(Report::Failed(step)) => return Err(Error::Step(step)),
                // The wire has no listenerPath, without which no profile that notifies compiles.
                Some(Report::Listener(_)) => {
                    let text = "seccomp notifications have nobody to go to in a sandbox";
                    return Err(Error::Invalid(text.to_owned()));
                }
                Some(Report::Console(master)) => {
                    self.hold(process, Held::Console, &master)?;
                    self.serve_terminal(container, process, master, std::mem::take(sockets)).map_err(
                        failed_to(|| format!("use the terminal of process {:?}", process.exec_id)),
                    )?;
                }
            }
        }
    }

    /// The launch protocol is over.
    pub(super) fn end_sync(&self, process: &Process) {
        process.sync.take();
        self.release(process, Held::Sync);
    }
}
