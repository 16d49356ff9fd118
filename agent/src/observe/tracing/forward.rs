//! The way to the host's trace forwarder: a queue, a thread, a connection.
//!
//! ```text
//!   call ends --try_send--> queue (QUEUE spans) --> thread --u64 length, JSON--> forwarder
//!                 '-- full: dropped                   '-- nobody there, or stuck for STALL: dropped
//! ```
//!
//! The forwarder is dialled when there is something to tell and not within [`RETRY`] of a failure, so a host without
//! one costs a refused connection a second and only while calls come.

use std::{
    io::{self, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use slog::Logger;
use vsock::{VMADDR_CID_HOST, VsockAddr, VsockStream};

use super::record::SpanData;
use crate::address::Address;

/// Where forwarders listen on the host.
pub const PORT: u32 = 10240;

/// Spans that may wait, about half a KiB each.
const QUEUE: usize = 1024;
/// How long a forwarder may take nothing before it counts as gone.
const STALL: Duration = Duration::from_secs(5);
/// How long after a failure it is left alone.
const RETRY: Duration = Duration::from_secs(1);
const STACK: usize = 128 << 10;

type Socket = Box<dyn Write + Send>;

/// Where the forwarder of an agent that serves at `served` is: on the host, or at a Unix socket beside.
pub fn place(served: &Address) -> Address {
    match served.beside("trace", PORT) {
        Address::Vsock { port, .. } => Address::Vsock { cid: VMADDR_CID_HOST, port },
        unix => unix,
    }
}

/// The near end of the way.
#[derive(Debug)]
pub(super) struct Forwarder {
    queue: SyncSender<Box<SpanData>>,
    dropped: Arc<AtomicU64>,
}

impl Forwarder {
    pub(super) fn start(to: Address, log: Logger) -> io::Result<Self> {
        let (queue, spans) = sync_channel(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let way = Way { to, log, dropped: Arc::clone(&dropped), socket: None, failed: None };
        thread::Builder::new().name("spans".to_owned()).stack_size(STACK).spawn(move || way.serve(&spans))?;
        Ok(Self { queue, dropped })
    }

    pub(super) fn send(&self, span: SpanData) {
        if self.queue.try_send(Box::new(span)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The far end, on its thread.
struct Way {
    to: Address,
    log: Logger,
    dropped: Arc<AtomicU64>,
    socket: Option<Socket>,
    /// When it last failed; told of once, until it works again.
    failed: Option<Instant>,
}

impl Way {
    /// Until nobody makes spans any more.
    fn serve(mut self, spans: &Receiver<Box<SpanData>>) {
        for span in spans {
            if self.failed.is_some_and(|failed| failed.elapsed() < RETRY) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            } else if let Err(error) = self.tell(&span) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                if self.failed.replace(Instant::now()).is_none() {
                    slog::warn!(self.log, "spans are dropped: no trace forwarder takes them";
                        "address" => %self.to, "error" => %error);
                }
            } else if self.failed.take().is_some() {
                slog::info!(self.log, "the trace forwarder takes spans";
                    "dropped" => self.dropped.load(Ordering::Relaxed));
            }
        }
    }

    fn tell(&mut self, span: &SpanData) -> io::Result<()> {
        let text = serde_json::to_vec(span)?;
        let length = u64::try_from(text.len()).map_err(io::Error::other)?;
        let mut frame = length.to_be_bytes().to_vec();
        frame.extend(text);
        // What was sent of a span cannot be taken back, so nothing can follow a failure on its connection. The
        // forwarder may have been started anew meanwhile.
        let still =
            self.socket.take().and_then(|mut socket| socket.write_all(&frame).is_ok().then_some(socket));
        let socket = match still {
            Some(socket) => socket,
            None => {
                let mut socket = connect(&self.to)?;
                socket.write_all(&frame)?;
                socket
            }
        };
        self.socket = Some(socket);
        Ok(())
    }
}

fn connect(to: &Address) -> io::Result<Socket> {
    let unix = match to {
        Address::Vsock { cid, port } => {
            let socket = VsockStream::connect(&VsockAddr::new(*cid, *port))?;
            socket.set_write_timeout(Some(STALL))?;
            return Ok(Box::new(socket));
        }
        Address::Unix(path) => UnixStream::connect(path)?,
        Address::Abstract(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?,
    };
    unix.set_write_timeout(Some(STALL))?;
    Ok(Box::new(unix))
}
