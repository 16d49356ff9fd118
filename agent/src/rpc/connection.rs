//! One connection: frames in, replies out.
//!
//! ```text
//!             client shuts its side            every reply is out
//!   Open ----------------------------> Ending ----------------------> Closed
//!     |  client gone, frame refused,     |  client gone, write stalled  ^
//!     '----------- write stalled --------'------------------------------'
//! ```
//!
//! Two tasks share it. The reader takes frames from the buffer, answers what can be answered at once and, when
//! the buffer is drained, writes all those answers with one system call. The writer sleeps until the socket
//! was full or a call ended later, and notices that the peer is gone. In Closed tied calls are dropped;
//! detached ones hold no reference and run on.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::{Future, poll_fn},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use nix::sys::socket::{Shutdown, shutdown};
use slog::debug;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    task::{AbortHandle, yield_now},
    time::{Instant, timeout},
};

use super::{
    budget::{Account, Charge},
    call::Call,
    envelope,
    frame::{HEADER, Header, REQUEST},
    gate::hold,
    hub::Hub,
    input::Input,
    limits::{FRAME_MAX, INPUT_BUFFER},
    output::{Flushed, Output},
    reply::{Code, Status},
    service::{Answer, Fate, Gate, Outcome, Passed},
    watch::watch,
};
use crate::task::Room;

pub(super) struct Connection {
    pub(super) hub: Rc<Hub>,
    socket: AsyncFd<OwnedFd>,
    output: RefCell<Output>,
    account: Rc<Account>,
    tied: RefCell<HashMap<u32, AbortHandle>>,
    held: RefCell<Vec<Waker>>,
    pending: Cell<usize>,
    drained: Cell<bool>,
    gone: Cell<bool>,
    batching: Cell<bool>,
    changed: Notify,
}

/// What is to be done with a frame, by its header alone.
enum Verdict {
    Serve,
    Skip,
    Refuse(Status),
    Close(&'static str),
}

impl Connection {
    pub(super) fn new(hub: Rc<Hub>, socket: OwnedFd) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            hub,
            socket: watch(socket, Interest::READABLE | Interest::WRITABLE)?,
            output: RefCell::default(),
            account: Rc::default(),
            tied: RefCell::default(),
            held: RefCell::default(),
            pending: Cell::new(0),
            drained: Cell::new(false),
            gone: Cell::new(false),
            batching: Cell::new(false),
            changed: Notify::new(),
        }))
    }

    /// Serves it until it is closed.
    pub(super) async fn run(self: Rc<Self>) {
        let reader = crate::task::spawn(self.clone().read());
        if let Err(error) = self.write().await {
            debug!(self.hub.log, "connection lost"; "error" => %error);
        }
        self.close();
        // It ends by itself: a socket that was shut down reads to its end, and nothing it waits for is withheld.
        let _ = reader.await;
    }

    async fn read(self: Rc<Self>) {
        if let Err(error) = self.read_frames().await {
            debug!(self.hub.log, "connection closed"; "reason" => %error);
            self.close();
        }
        self.drained.set(true);
        self.changed.notify_one();
    }

    async fn read_frames(self: &Rc<Self>) -> io::Result<()> {
        let mut input = Input::new(&self.socket, self.hub.limits.frame_progress);
        loop {
            while let Some(header) = input.header() {
                let length = header.length as usize;
                match judge(header) {
                    // A large frame has filled the buffer before anything is set aside for it, so a peer
                    // that only declares lengths gets nothing.
                    Verdict::Serve if input.buffered().len() < INPUT_BUFFER.min(HEADER + length) => break,
                    Verdict::Serve if HEADER + length > INPUT_BUFFER => {
                        self.serve_large(&mut input, header).await?;
                    }
                    Verdict::Serve => {
                        let charge = self.admit(length).await?;
                        let body = input.buffered().get(HEADER..HEADER + length).unwrap_or_default();
                        self.serve(header.stream, body, charge);
                        input.consume(HEADER + length);
                    }
                    Verdict::Skip => self.skip(&mut input, header).await?,
                    Verdict::Refuse(status) => {
                        self.skip(&mut input, header).await?;
                        self.reply(header.stream, Err(status));
                    }
                    Verdict::Close(reason) => return Err(io::Error::new(io::ErrorKind::InvalidData, reason)),
                }
                input.reset_deadline();
            }
            self.flush();
            if !input.fill().await? {
                return if input.buffered().is_empty() {
                    Ok(())
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
            // More is waiting than the buffer holds: the other connections have their turn first.
            if input.is_full() {
                yield_now().await;
            }
        }
    }

    async fn skip(&self, input: &mut Input<'_>, header: Header) -> io::Result<()> {
        self.flush();
        input.discard(HEADER + header.length as usize).await
    }

    /// A frame that does not fit the buffer is charged first and then read into memory of its own, which the
    /// kernel provides as the bytes come.
    async fn serve_large(self: &Rc<Self>, input: &mut Input<'_>, header: Header) -> io::Result<()> {
        self.flush();
        let charge = self.admit(header.length as usize).await?;
        // The wait was ours, not the peer's.
        input.reset_deadline();
        input.consume(HEADER);
        let mut body = vec![0; header.length as usize];
        input.read_body(&mut body).await?;
        self.serve(header.stream, &body, charge);
        Ok(())
    }

    /// Waits until the budget and the reply queue have room for a request of `bytes`. A request that has come
    /// whole is served even if its client is gone, provided that nothing has to be waited for.
    async fn admit(self: &Rc<Self>, bytes: usize) -> io::Result<Charge> {
        loop {
            // Made before the look, so that room made by the flush below is not missed.
            let room = self.hub.budget.room.notified();
            if self.has_room()
                && let Some(charge) = self.hub.budget.charge(&self.account, bytes, &self.hub.limits)
            {
                return Ok(charge);
            }
            if self.gone.get() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.flush();
            room.await;
        }
    }

    /// Answers a request, or starts the call that will.
    fn serve(self: &Rc<Self>, stream: u32, body: &[u8], charge: Charge) {
        self.batching.set(true);
        match self.hand_over(body) {
            Ok((Outcome::Gated(gate), given)) => self.wait_at(gate, stream, body, given, charge),
            Ok((outcome, given)) => self.proceed(outcome, stream, given, charge),
            Err(status) => self.reply(stream, Err(status)),
        }
        self.batching.set(false);
    }

    /// Parses a request and hands it to the service; with the time its client has given it.
    fn hand_over(&self, body: &[u8]) -> Result<(Outcome, Option<Duration>), Status> {
        let request = envelope::parse(body)?;
        let nanos = u64::try_from(request.timeout_nano).map_err(|_| {
            Status::invalid(format_args!("timeout_nano is negative: {}", request.timeout_nano))
        })?;
        Ok((self.hub.call(&request)?, (nanos > 0).then(|| Duration::from_nanos(nanos))))
    }

    fn proceed(self: &Rc<Self>, outcome: Outcome, stream: u32, given: Option<Duration>, charge: Charge) {
        match outcome {
            Outcome::Now(reply) => self.reply(stream, Ok(reply)),
            // Nobody waits for it, and it changes nothing.
            Outcome::Later(running) if self.gone.get() && running.fate == Fate::Tied => {}
            Outcome::Later(running) => {
                // A host that pulls images in the guest has long ones of its own.
                let timeout = given.or(running.cap);
                Call::start(self, stream, running, timeout, charge);
            }
            Outcome::Gated(_) => {
                self.reply(stream, Err(Status::new(Code::Internal, "a call was gated twice")));
            }
        }
    }

    /// Has the call done once its gate lets it, even for a client that is gone by then.
    fn wait_at(
        self: &Rc<Self>,
        gate: Gate,
        stream: u32,
        body: &[u8],
        given: Option<Duration>,
        charge: Charge,
    ) {
        let (connection, body, came) = (Rc::clone(self), body.to_vec(), Instant::now());
        connection.call_begins();
        crate::task::spawn(async move {
            let outcome = match gate.await {
                Ok(Passed::Answered(reply)) => Ok(Outcome::Now(reply)),
                Ok(Passed::Go(turn)) => envelope::parse(&body)
                    .map_err(Status::from)
                    .and_then(|request| connection.hub.permitted(&request))
                    .map(|outcome| hold(outcome, turn)),
                Err(status) => Err(status),
            };
            let left = given.map(|given| given.saturating_sub(came.elapsed()));
            match outcome {
                Ok(outcome) => connection.proceed(outcome, stream, left, charge),
                Err(status) => connection.reply(stream, Err(status)),
            }
            connection.hub.call_ends();
            connection.call_ends(stream);
        });
    }

    /// Answers `stream`. The reader sends what it caused itself; for the rest the writer is woken.
    pub(super) fn reply(&self, stream: u32, answer: Answer) {
        if !self.gone.get() {
            self.output.borrow_mut().push(stream, answer);
        }
        if !self.batching.get() {
            self.changed.notify_one();
        }
    }

    fn has_room(&self) -> bool {
        self.output.borrow().len() < self.hub.limits.reply_bytes
    }

    pub(super) fn call_begins(&self) {
        self.hub.call_begins();
        self.pending.update(|count| count + 1);
    }

    pub(super) fn tie(&self, stream: u32, task: AbortHandle) {
        if self.gone.get() {
            task.abort();
        } else {
            self.tied.borrow_mut().insert(stream, task);
        }
    }

    pub(super) fn call_ends(&self, stream: u32) {
        self.tied.borrow_mut().remove(&stream);
        self.pending.update(|count| count - 1);
        if self.drained.get() {
            self.changed.notify_one();
        }
    }

    /// Writes what can be written without waiting; the writer does the rest.
    fn flush(&self) {
        match self.try_flush() {
            Ok(Flushed::All) => {}
            Ok(Flushed::Blocked) | Err(_) => self.changed.notify_one(),
        }
    }

    fn try_flush(&self) -> io::Result<Flushed> {
        let mut ended = Vec::new();
        let full = !self.has_room();
        let result = self.output.borrow_mut().flush(self.socket.as_fd(), &mut ended);
        for lease in ended {
            lease.sent();
        }
        if full && self.has_room() {
            self.wake_waiters();
        }
        result
    }

    fn wake_waiters(&self) {
        for waker in self.held.take() {
            waker.wake();
        }
        self.hub.budget.room.notify_waiters();
    }

    async fn write(&self) -> io::Result<()> {
        while !self.gone.get() {
            match self.try_flush()? {
                Flushed::All if self.drained.get() && self.pending.get() == 0 => break,
                Flushed::All => self.wait_for_work().await?,
                Flushed::Blocked => {
                    let sent = self.output.borrow().sent();
                    let writable =
                        timeout(self.hub.limits.write_stall, self.socket.ready(Interest::WRITABLE));
                    let Ok(ready) = writable.await else {
                        self.look_for_progress(sent)?;
                        continue;
                    };
                    let mut ready = ready?;
                    if ready.ready().is_write_closed() {
                        return Err(io::ErrorKind::BrokenPipe.into());
                    }
                    if self.try_flush()? == Flushed::Blocked {
                        ready.clear_ready();
                    }
                }
            }
        }
        Ok(())
    }

    /// Fails if the socket has taken no more than `sent` bytes and takes none now. A Unix socket polls writable only
    /// once most of its buffer is free, and a peer that reads a KiB a second may be long in getting there.
    fn look_for_progress(&self, sent: u64) -> io::Result<()> {
        self.try_flush()?;
        if self.output.borrow().sent() == sent { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Until something is to be written, or may be, or nothing ever will.
    async fn wait_for_work(&self) -> io::Result<()> {
        let mut changed = pin!(self.changed.notified());
        poll_fn(|cx| {
            if changed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            // Writability is of no interest with nothing to write; that the peer is gone is.
            while let Poll::Ready(ready) = self.socket.poll_write_ready(cx) {
                let mut ready = ready?;
                if ready.ready().is_write_closed() {
                    return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                }
                ready.clear_ready();
            }
            Poll::Pending
        })
        .await
    }

    fn close(&self) {
        if self.gone.replace(true) {
            return;
        }
        // Errors mean that it is closed already.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        for (_, task) in self.tied.take() {
            task.abort();
        }
        drop(self.output.take());
        self.wake_waiters();
        self.changed.notify_one();
    }
}

impl Room for Connection {
    fn poll_room(&self, cx: &Context<'_>) -> bool {
        let room = self.has_room();
        if !room {
            self.held.borrow_mut().push(cx.waker().clone());
        }
        room
    }
}

/// The rules of the wire, before any byte of the body is looked at. Ids need not rise: the ttrpc crate's client
/// (Kata's runtime-rs, berthctl) takes an id and then queues to send, so concurrent calls overtake each other.
fn judge(header: Header) -> Verdict {
    let length = header.length as usize;
    if length >= 4 * FRAME_MAX {
        // PROTOCOL.md reserves the first length byte as zero; reading 4 GiB away would serve nobody.
        Verdict::Close("a frame of 16 MiB or more")
    } else if header.kind != REQUEST {
        // Unknown types are ignored for later versions' sake, and so is data for streams that cannot exist.
        Verdict::Skip
    } else if length > FRAME_MAX {
        let text = format_args!("message length {length} exceeds the maximum message size of {FRAME_MAX}");
        Verdict::Refuse(Status::new(Code::ResourceExhausted, text))
    } else if header.stream.is_multiple_of(2) {
        Verdict::Refuse(Status::invalid("StreamID must be odd for client initiated streams"))
    } else {
        Verdict::Serve
    }
}
