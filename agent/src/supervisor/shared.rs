//! What the worker's tasks and callers share: the link to init, what waits to be said over it and what it brought.

use std::{
    cell::{Cell, RefCell},
    collections::{HashSet, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustjail::sys::scm;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    time::{MissedTickBehavior, interval},
};

use super::{Exit, Handover, Key, launch::Launcher};
use crate::{
    link::{FRAME_SIZE, ToInit, ToWorker},
    reactor::register,
};

/// Init takes six times this for a sign that the reactor is stuck.
const PING: Duration = Duration::from_secs(2);

/// What the tasks and the callers share.
#[derive(Debug)]
pub(super) struct Shared {
    link: AsyncFd<OwnedFd>,
    /// Init closed the link: it is gone, and so will this process be.
    lost: Cell<bool>,
    pub(super) outbox: RefCell<VecDeque<(ToInit, Option<OwnedFd>)>>,
    outbox_filled: Notify,
    pub(super) exits: RefCell<VecDeque<Exit>>,
    pub(super) exit_came: Notify,
    /// What init's store holds, to refuse here what it would have to refuse.
    pub(super) keys: RefCell<HashSet<Key>>,
    pub(super) launcher: Launcher,
}

impl Shared {
    /// Over the link that init made this process with.
    pub(super) fn over(link: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            link: register(link, Interest::READABLE | Interest::WRITABLE)?,
            lost: Cell::default(),
            outbox: RefCell::default(),
            outbox_filled: Notify::new(),
            exits: RefCell::default(),
            exit_came: Notify::new(),
            keys: RefCell::default(),
            launcher: Launcher::default(),
        })
    }

    pub(super) fn alive(&self) -> io::Result<()> {
        if self.lost.get() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Sends at once if that is possible and nothing else waits, otherwise soon.
    pub(super) fn tell(&self, message: ToInit, fd: Option<OwnedFd>) -> io::Result<()> {
        self.alive()?;
        self.outbox.borrow_mut().push_back((message, fd));
        match self.send_some() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.outbox_filled.notify_one();
                Ok(())
            }
            result => result,
        }
    }

    /// Sends when all that can be done at once is done, a reply say: each message wakes init, who might take the processor.
    pub(super) fn tell_later(&self, message: ToInit, fd: Option<OwnedFd>) -> io::Result<()> {
        self.alive()?;
        let mut outbox = self.outbox.borrow_mut();
        if !outbox.back_mut().is_some_and(|(last, _)| join(last, message)) {
            outbox.push_back((message, fd));
        }
        self.outbox_filled.notify_one();
        Ok(())
    }

    /// Sends until nothing is left, or until init must read first (`WouldBlock`).
    fn send_some(&self) -> io::Result<()> {
        let mut outbox = self.outbox.borrow_mut();
        while let Some((message, fd)) = outbox.front() {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            scm::send(self.link.get_ref().as_fd(), &message.encode(), &fds)?;
            outbox.pop_front();
        }
        Ok(())
    }

    /// Waits until init's socket has everything said so far: from then on it counts even if this process dies.
    pub(super) async fn flush(&self) -> io::Result<()> {
        self.link.async_io(Interest::WRITABLE, |_| self.send_some()).await
    }

    pub(super) async fn write_forever(self: Rc<Self>) {
        while self.alive().is_ok() {
            self.outbox_filled.notified().await;
            tokio::task::yield_now().await;
            if self.flush().await.is_err() {
                self.lose();
            }
        }
    }

    pub(super) async fn ping_forever(self: Rc<Self>) {
        let mut ticks = interval(PING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.alive().is_ok() {
            ticks.tick().await;
            // Behind other messages a ping would say nothing that they do not.
            if self.outbox.borrow().is_empty() {
                // A link that is gone is noticed by the reader.
                let _ = self.tell(ToInit::Ping, None);
            }
        }
    }

    pub(super) async fn read_forever(self: Rc<Self>) {
        loop {
            match self.receive().await {
                Ok((ToWorker::Exit { pid, status }, _)) => {
                    self.exits.borrow_mut().push_back(Exit { pid, status });
                    self.exit_came.notify_one();
                }
                Ok((ToWorker::Launcher { pid }, Some(fd))) => self.launcher.succeed(pid, fd),
                // Nothing else is sent after READY.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => return self.lose(),
            }
        }
    }

    pub(super) async fn hand_over(&self) -> io::Result<Handover> {
        let mut handover = Handover::default();
        loop {
            match self.receive().await? {
                (ToWorker::Hello { generation, pid1 }, _) => {
                    handover.generation = generation;
                    handover.pid1 = pid1;
                }
                (ToWorker::Stage { name, at }, _) => handover.stages.push((name, at)),
                (ToWorker::Listener { kind }, Some(fd)) => handover.listeners.push((kind, fd)),
                (ToWorker::Stored { key }, Some(fd)) => _ = handover.stored.insert(Key(key), fd),
                (ToWorker::Launcher { pid }, Some(fd)) => self.launcher.succeed(pid, fd),
                (ToWorker::Records, fd) => handover.records = fd,
                (ToWorker::Ready, _) => return Ok(handover),
                // A descriptor that this process had no room for; its owner will miss it.
                (ToWorker::Listener { .. } | ToWorker::Stored { .. } | ToWorker::Launcher { .. }, None) => {}
                (ToWorker::Exit { pid, status }, _) => {
                    self.exits.borrow_mut().push_back(Exit { pid, status });
                }
            }
        }
    }

    async fn receive(&self) -> io::Result<(ToWorker, Option<OwnedFd>)> {
        let mut frame = [0; FRAME_SIZE + 1];
        let received =
            self.link.async_io(Interest::READABLE, |fd| scm::receive(fd.as_fd(), &mut frame)).await?;
        if received.length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message = frame.get(..received.length).and_then(ToWorker::decode);
        Ok((message.ok_or(io::ErrorKind::InvalidData)?, received.fds.into_iter().next()))
    }

    fn lose(&self) {
        self.lost.set(true);
        self.exit_came.notify_one();
        self.launcher.wake();
    }
}

/// Makes one message of two that have init close descriptors of the same process, if it can.
fn join(last: &mut ToInit, next: ToInit) -> bool {
    let (ToInit::Forget { first, which }, ToInit::Forget { first: key, which: 1 }) = (last, next) else {
        return false;
    };
    let bit = key.checked_sub(*first).and_then(|bit| u32::try_from(bit).ok());
    let bit = bit.and_then(|bit| 1_u32.checked_shl(bit));
    *which |= bit.unwrap_or_default();
    bit.is_some()
}
