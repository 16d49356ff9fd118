//! Raw streams: connections a host made for one stream of one process, matched by port.
//!
//! ```text
//!   accepted --handshake--> waiting --claimed by Create/Exec--> a pump
//!                              \--60 s, or pushed out by newer ones--> closed
//! ```
//!
//! On vsock a connection is known by its peer's port, which hybrid vsock tells the host in its `OK <port>`
//! line. On a unix socket the agent plays the VMM's part of that handshake itself, so a host's code is the
//! same everywhere: it writes `CONNECT <port>`, reads `OK <n>`, and passes n in its request.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use nix::sys::socket::{SockaddrStorage, getpeername};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    time::{Instant, timeout_at},
};

use crate::{
    port::{self, Count},
    reactor::register,
};

use super::when_ready;

/// More connections than any host opens ahead of its requests; the oldest gives way.
const MAX_WAITING: usize = 64;
/// How long a connection may go unclaimed.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a request waits for a connection that is still on its way.
const CLAIM: Duration = Duration::from_secs(1);
/// How long a peer may take over its `CONNECT` line.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The longest `CONNECT <port>` line.
const MAX_LINE: usize = 32;
/// VMADDR_CID_HOST: a container of this guest must not pose as the host.
const HOST: u32 = 2;

/// Connections that no request has claimed yet.
#[derive(Debug, Default)]
pub struct Waiting {
    connections: RefCell<VecDeque<Connection>>,
    arrived: Notify,
    handshakes: Count,
    last_port: Cell<u32>,
}

#[derive(Debug)]
struct Connection {
    port: u32,
    socket: OwnedFd,
    expires: Instant,
}

impl Waiting {
    /// Accepts connections for as long as the listener works.
    pub async fn serve(self: Rc<Self>, listener: OwnedFd) -> io::Result<()> {
        let expiry = crate::task::spawn(Rc::clone(&self).expire());
        let outcome = self.accept(listener).await;
        expiry.abort();
        outcome
    }

    async fn accept(self: &Rc<Self>, listener: OwnedFd) -> io::Result<()> {
        super::set_nonblocking(&listener)?;
        let listener = register(listener, Interest::READABLE)?;
        loop {
            self.admit(port::next(&listener).await?);
        }
    }

    fn admit(self: &Rc<Self>, socket: OwnedFd) {
        let Ok(peer) = getpeername::<SockaddrStorage>(socket.as_raw_fd()) else { return };
        match peer.as_vsock_addr() {
            Some(peer) if peer.cid() == HOST => self.add(peer.port(), socket),
            Some(_) => {}
            None => self.greet(socket),
        }
    }

    fn greet(self: &Rc<Self>, socket: OwnedFd) {
        if self.handshakes.get() >= MAX_WAITING {
            return;
        }
        let (waiting, counted) = (Rc::clone(self), self.handshakes.one_more());
        crate::task::spawn(async move {
            waiting.shake_hands(socket).await;
            drop(counted);
        });
    }

    async fn shake_hands(&self, socket: OwnedFd) {
        let port = self.next_port();
        let Ok(socket) = register(socket, Interest::READABLE | Interest::WRITABLE) else {
            return;
        };
        let handshake = answer_connect(&socket, port);
        if timeout_at(Instant::now() + HANDSHAKE, handshake).await.is_ok_and(|answered| answered.is_ok()) {
            self.add(port, socket.into_inner());
        }
    }

    fn next_port(&self) -> u32 {
        // The range the kernel gives out itself on vsock starts above the reserved ports too.
        let port = self.last_port.get().checked_add(1).filter(|port| *port > 1023).unwrap_or(1024);
        self.last_port.set(port);
        port
    }

    fn add(&self, port: u32, socket: OwnedFd) {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|waiting| waiting.port != port);
        if connections.len() >= MAX_WAITING {
            connections.pop_front();
        }
        connections.push_back(Connection { port, socket, expires: Instant::now() + PATIENCE });
        self.arrived.notify_waiters();
    }

    /// The connection of `port`; waits a moment for one that is still on its way.
    pub async fn claim(&self, port: u32) -> io::Result<OwnedFd> {
        let deadline = Instant::now() + CLAIM;
        loop {
            let arrived = self.arrived.notified();
            if let Some(socket) = self.remove(port) {
                return Ok(socket);
            }
            timeout_at(deadline, arrived).await.map_err(|_elapsed| {
                let text =
                    format!("no connection from port {port} came to the raw stdio listener within 1 s");
                io::Error::new(io::ErrorKind::NotConnected, text)
            })?;
        }
    }

    fn remove(&self, port: u32) -> Option<OwnedFd> {
        let mut connections = self.connections.borrow_mut();
        let place = connections.iter().position(|waiting| waiting.port == port)?;
        connections.remove(place).map(|connection| connection.socket)
    }

    /// Closes what nobody claimed in time.
    async fn expire(self: Rc<Self>) {
        loop {
            let arrived = self.arrived.notified();
            let oldest = self.connections.borrow().front().map(|connection| connection.expires);
            match oldest {
                Some(expires) => tokio::time::sleep_until(expires).await,
                None => arrived.await,
            }
            let now = Instant::now();
            self.connections.borrow_mut().retain(|connection| connection.expires > now);
        }
    }
}

/// Reads `CONNECT <port>\n`, byte by byte because the stream's own bytes may follow at once.
async fn answer_connect(socket: &AsyncFd<OwnedFd>, port: u32) -> io::Result<()> {
    let mut line = Vec::with_capacity(MAX_LINE);
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        let read = when_ready(socket, Interest::READABLE, |fd| Ok(nix::unistd::read(fd, &mut byte)?)).await?;
        if read == 0 || line.len() >= MAX_LINE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        line.extend_from_slice(&byte);
    }
    let asked = line.strip_prefix(b"CONNECT ").and_then(|rest| std::str::from_utf8(rest.trim_ascii()).ok());
    asked.and_then(|port| port.parse::<u32>().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let answer = format!("OK {port}\n");
    let written = nix::unistd::write(socket.get_ref(), answer.as_bytes())?;
    if written == answer.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
