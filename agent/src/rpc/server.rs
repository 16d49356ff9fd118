//! The accept loop: over a listener that is bound already, of either address family.
//!
//! Init opens the listeners and they outlive this process, so connections that come while it restarts wait in
//! the backlog. [`Server::serve`] never ends while the listener is sound: running out of descriptors or memory
//! makes it pause, and the connection that could not be had is closed rather than left waiting.

use std::{
    convert::Infallible,
    io,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
};
use rustjail::sys::accept::accept;
use slog::{Logger, warn};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::yield_now,
    time::sleep,
};

use super::{
    connection::Connection,
    hub::Hub,
    limits::{ACCEPT_PAUSE, Limits},
    service::Service,
    watch::watch,
};
use crate::port::is_host;

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// See [`Limits`].
    pub limits: Limits,
    /// Serve vsock peers other than the host: for a guest that is driven from a sibling VM.
    pub any_cid: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { limits: Limits::for_machine(), any_cid: false }
    }
}

/// A ttrpc server. It spawns local tasks, so it must be run inside a [`tokio::task::LocalSet`].
pub struct Server {
    hub: Rc<Hub>,
    any_cid: bool,
}

impl Server {
    /// A server of `service`.
    pub fn new(service: Rc<dyn Service>, options: Options, log: Logger) -> Self {
        Self { hub: Rc::new(Hub::new(service, options.limits, log)), any_cid: options.any_cid }
    }

    /// Accepts and serves connections; returns only if the listener itself is unusable. May be called for
    /// several listeners at once: they share the limits.
    pub async fn serve(&self, listener: OwnedFd) -> io::Result<Infallible> {
        let flags = OFlag::from_bits_truncate(fcntl(&listener, FcntlArg::F_GETFL)?);
        fcntl(&listener, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        let mut reserve = listener.try_clone().ok();
        let listener = watch(listener, Interest::READABLE)?;
        let mut pause = ACCEPT_PAUSE.0;
        loop {
            let mut ready = listener.readable().await?;
            match accept(listener.as_fd()) {
                Ok(socket) => {
                    pause = ACCEPT_PAUSE.0;
                    self.admit(socket);
                    // Each turn is a chance for the connections that are served already.
                    yield_now().await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if is_shortage(&error) => {
                    drop(ready);
                    warn!(self.hub.log, "cannot accept connections"; "error" => %error, "pause_ms" => pause.as_millis() as u64);
                    refuse_one(&listener, &mut reserve);
                    pause = wait(pause).await;
                }
                Err(error) if is_fatal(&error) => return Err(error),
                // The connection ended before it was accepted.
                Err(_) => {}
            }
        }
    }

    fn admit(&self, socket: OwnedFd) {
        if !self.any_cid && !is_host(&socket) {
            warn!(self.hub.log, "refused a connection that is not from the host");
            return;
        }
        if self.hub.connections.get() >= self.hub.limits.connections {
            warn!(self.hub.log, "refused a connection: too many"; "open" => self.hub.connections.get());
            return;
        }
        let hub = self.hub.clone();
        match Connection::new(hub.clone(), socket) {
            Ok(connection) => {
                hub.connections.update(|count| count + 1);
                crate::task::spawn(async move {
                    connection.run().await;
                    hub.connections.update(|count| count - 1);
                });
            }
            Err(error) => warn!(self.hub.log, "cannot serve a connection"; "error" => %error),
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("connections", &self.hub.connections.get()).finish_non_exhaustive()
    }
}

/// Gives up the descriptor that was kept for this, to tell one waiting peer by closing it.
fn refuse_one(listener: &AsyncFd<OwnedFd>, reserve: &mut Option<OwnedFd>) {
    *reserve = None;
    drop(accept(listener.as_fd()));
    *reserve = listener.get_ref().try_clone().ok();
}

/// Nothing tells a process that it may open descriptors again, so this one place waits by the clock.
async fn wait(pause: Duration) -> Duration {
    sleep(pause).await;
    (pause * 2).min(ACCEPT_PAUSE.1)
}

fn is_shortage(error: &io::Error) -> bool {
    const SHORTAGES: [Errno; 4] = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::ENOBUFS];
    error.raw_os_error().is_some_and(|code| SHORTAGES.contains(&Errno::from_raw(code)))
}

fn is_fatal(error: &io::Error) -> bool {
    const FATAL: [Errno; 4] = [Errno::EBADF, Errno::EINVAL, Errno::ENOTSOCK, Errno::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|code| FATAL.contains(&Errno::from_raw(code)))
}
