//! A listening socket that serves a bounded number of connections, each in a task of its own, and only from the host.
//!
//! A container can reach a port from inside, by the loopback or by the guest's own CID, where the kernel has them
//! (CVE-2020-15257 was such a door); so who connects is looked at before anything is read. A machine that is short
//! of descriptors or memory makes accepting pause, never end.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{SockaddrStorage, getpeername},
};
use rustjail::sys::accept::accept;
use slog::{Logger, warn};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    reactor::register,
    stdio::{set_nonblocking, when_ready},
};

/// How long accepting rests when the machine is out of descriptors or memory: nothing tells when there are more.
const RETRY: Duration = Duration::from_millis(100);

/// A connection, not blocking.
pub type Socket = Rc<AsyncFd<OwnedFd>>;

/// Which peers are served and how many at once.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Serve vsock peers other than the host.
    pub any_cid: bool,
    /// More are closed at once.
    pub most: usize,
}

/// Whether the peer is the host (CID 2), the hypervisor (CID 0), or not on vsock at all.
pub fn is_host(socket: &OwnedFd) -> bool {
    match getpeername::<SockaddrStorage>(socket.as_raw_fd()) {
        Ok(peer) => peer.as_vsock_addr().is_none_or(|vsock| matches!(vsock.cid(), 0 | 2)),
        Err(_) => false,
    }
}

/// Accepts for as long as the listener works, and answers why it does no more. Needs a `LocalSet`.
pub async fn serve<F>(listener: OwnedFd, rules: Rules, log: Logger, handle: impl Fn(Socket) -> F) -> io::Error
where
    F: Future<Output = ()> + 'static,
{
    let listener = match set_nonblocking(&listener).and_then(|()| register(listener, Interest::READABLE)) {
        Ok(listener) => listener,
        Err(error) => return error,
    };
    let open = Count::default();
    loop {
        let socket = match next(&listener).await {
            Ok(socket) => socket,
            Err(error) => return error,
        };
        if !rules.any_cid && !is_host(&socket) {
            warn!(log, "refused a connection that is not from the host");
        } else if open.get() >= rules.most {
            warn!(log, "refused a connection: too many"; "open" => open.get());
        } else if let Ok(socket) = register(socket, Interest::READABLE | Interest::WRITABLE) {
            let (work, counted) = (handle(Rc::new(socket)), open.one_more());
            crate::task::spawn(async move {
                work.await;
                drop(counted);
            });
        }
    }
}

/// The next connection; an error is one of the listener itself.
pub async fn next(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    loop {
        match when_ready(listener, Interest::READABLE, |fd| accept(fd.as_fd())).await {
            Err(error) if is_passing(&error) => tokio::time::sleep(RETRY).await,
            outcome => return outcome,
        }
    }
}

/// How many of something there are. One is counted for as long as its [`Counted`] lives, even if what holds it panics.
#[derive(Debug, Default, Clone)]
pub struct Count(Rc<Cell<usize>>);

/// One of a [`Count`].
#[derive(Debug)]
pub struct Counted(Count);

impl Count {
    /// How many there are now.
    pub fn get(&self) -> usize {
        self.0.get()
    }

    /// Counts another.
    pub fn one_more(&self) -> Counted {
        self.0.set(self.0.get() + 1);
        Counted(self.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.update(|count| count.saturating_sub(1));
    }
}

/// Errors of one connection, or of a moment without descriptors or memory.
fn is_passing(error: &io::Error) -> bool {
    const PASSING: [Errno; 7] = [
        Errno::ECONNABORTED,
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::EPERM,
        Errno::EPROTO,
    ];
    error.raw_os_error().is_some_and(|code| PASSING.contains(&Errno::from_raw(code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_panics_is_counted_no_longer() {
        let local = tokio::task::LocalSet::new();
        let count = Count::default();
        let counted = count.one_more();
        let task = async move {
            let _counted = counted;
            panic!("on purpose");
        };
        local.run_until(async { assert!(crate::task::spawn::<()>(task).await.is_err()) }).await;
        assert_eq!(count.get(), 0);
    }
}
