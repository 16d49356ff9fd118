//! The loop of init: reap, listen to the worker, keep the roles alive.
//!
//! ```text
//!            +--------------- the launcher dies: a new one, its link goes to the worker
//!            v                        |
//!   start -> both run ----------------+
//!            |  the worker dies, or is silent for 10 s and is killed
//!            v
//!            the launcher is killed too, so that no container appears behind the back of the next worker
//!            |  both are reaped; a worker that the kernel does not let go of is left behind after 14 s
//!            +--> start (after a pause if this happens often)
//! ```
//!
//! The order within a turn matters: what was reaped is judged only after the worker's messages were read once
//! more, so an EXPECT sent before a process existed is always known before its end is judged.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{Signal, kill},
        signalfd::SignalFd,
        socket::SockFlag,
    },
    unistd::Pid,
};
use rustjail::sys::{scm, wait};

use super::{
    closer::Closer,
    exits::Exits,
    listeners::Listener,
    roles::{Backoff, Program, link_pair},
    story::Story,
};
use crate::link::{FRAME_SIZE, ToInit, ToWorker};

/// How many descriptors may be in the store; a worker stops before it ([`crate::supervisor`]).
pub const STORE_CAPACITY: usize = 16_384;

/// How often silence is looked for. A turn late by any time counts once: a VM that was paused for an hour comes
/// back with one tick, not with a thousand, and the worker gets its chance to be heard before the next.
const TICK: Duration = Duration::from_secs(2);

/// More than a link's socket buffer holds (about 280 at 768 bytes of kernel memory each), so one reading sees
/// everything that was sent before it, and yet a worker that floods the link cannot keep init from reaping.
const MESSAGES_AT_ONCE: usize = 1024;

/// The status of what SIGKILL ends.
const KILLED: i32 = 128 + Signal::SIGKILL as i32;

/// How many processes are reaped before messages are read again.
const REAPED_AT_ONCE: usize = 512;

/// How many such rounds make a turn.
const ROUNDS: usize = 8;

/// Everything init knows.
#[derive(Debug)]
pub struct Init {
    /// Whether this is process 1 of its PID namespace.
    pub(super) pid1: bool,
    pub(super) story: Story,
    pub(super) signals: SignalFd,
    program: Program,
    pub(super) listeners: Vec<Listener>,
    /// Read by the worker on behalf of log readers; held here so that what it had not read outlives it.
    records: Option<Arc<OwnedFd>>,
    store: BTreeMap<u64, Arc<OwnedFd>>,
    closer: Closer,
    exits: Exits,
    worker: Option<Worker>,
    launcher: Option<i32>,
    generation: u32,
    backoff: Backoff,
    restart_at: Instant,
    tick_at: Instant,
    ending: bool,
}

#[derive(Debug)]
struct Worker {
    pid: i32,
    /// `None` once it is closed; the process is then killed.
    link: Option<OwnedFd>,
    /// What to send before any exit, with what goes beside it.
    outbox: VecDeque<(ToWorker, Option<Arc<OwnedFd>>)>,
    /// The link's buffer is full.
    full: bool,
    /// Ticks since it was heard.
    silent: u32,
    /// It has sent something that is no message.
    garbled: bool,
}

impl Init {
    /// Nothing is started before [`Init::run`].
    pub fn new(
        pid1: bool,
        story: Story,
        signals: SignalFd,
        program: Program,
        listeners: Vec<Listener>,
    ) -> Self {
        let now = Instant::now();
        Self {
            pid1,
            story,
            signals,
            program,
            listeners,
            records: None,
            store: BTreeMap::new(),
            closer: Closer::default(),
            exits: Exits::default(),
            worker: None,
            launcher: None,
            generation: 0,
            backoff: Backoff::default(),
            restart_at: now,
            tick_at: now + TICK,
            ending: false,
        }
    }

    /// Hands workers this pipe's reading end, into which the story is told too.
    pub fn with_records(self, records: Option<OwnedFd>) -> Self {
        Self { records: records.map(Arc::new), ..self }
    }

    /// Returns when everything is to end.
    pub fn run(&mut self) {
        let mut busy = false;
        while !self.ending {
            self.keep_roles();
            self.send();
            self.wait(busy);
            self.read_signals();
            self.read_messages();
            busy = self.reap();
            self.watchdog();
        }
    }

    /// The loop panicked. It is entered again, but not at once: the cause may still be there.
    pub(super) fn after_panic(&mut self) {
        self.story.problem(&"init panicked, which is a bug in Berth; it goes on");
        let _ = poll(&mut [], PollTimeout::from(1000u16));
    }

    /// The processes to be ended first: the roles, and what they started.
    pub(super) fn processes(&self) -> Vec<i32> {
        let roles = self.worker.iter().map(|worker| worker.pid).chain(self.launcher);
        roles.chain(self.exits.watched()).collect()
    }

    fn wait(&mut self, busy: bool) {
        let now = Instant::now();
        let mut until = None;
        let mut files = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if let Some(worker) = &self.worker {
            until = Some(self.tick_at);
            if let Some(link) = &worker.link {
                let out = if worker.full { PollFlags::POLLOUT } else { PollFlags::empty() };
                files.push(PollFd::new(link.as_fd(), PollFlags::POLLIN | out));
            }
        }
        if self.launcher.is_none() {
            until = Some(until.map_or(self.restart_at, |until| until.min(self.restart_at)));
        }
        let timeout = match until {
            _ if busy => PollTimeout::ZERO,
            None => PollTimeout::NONE,
            // Rounded up: a timeout cut to whole milliseconds would spin through the last of them.
            Some(until) => (until.saturating_duration_since(now) + Duration::from_micros(999))
                .try_into()
                .unwrap_or(PollTimeout::ZERO),
        };
        // An error is EINTR or ENOMEM; either way the next turn looks at everything again.
        let _ = poll(&mut files, timeout);
    }

    fn read_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            let number = Signal::try_from(signal.ssi_signo.cast_signed());
            // SIGCHLD only wakes; SIGHUP, from a console that went away, means nothing here.
            self.ending |= matches!(number, Ok(Signal::SIGTERM | Signal::SIGINT | Signal::SIGPWR));
        }
    }

    fn read_messages(&mut self) {
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(link) = self.worker.as_ref().and_then(|worker| worker.link.as_ref()) else {
                return;
            };
            let mut frame = [0; FRAME_SIZE + 1];
            match scm::receive(link.as_fd(), &mut frame) {
                Ok(received) if received.length > 0 => {
                    let message = frame.get(..received.length).and_then(ToInit::decode);
                    match message {
                        Some(message) => self.handle(message, received.fds.into_iter().next()),
                        None => self.garbled(),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It died with something of ours unread (unix(7)). What it had said before is still to be read.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Ok(_) | Err(_) => return self.lose_worker(),
            }
        }
    }

    /// Dropped; told once for each worker, lest a broken one fill the log.
    fn garbled(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        if !std::mem::replace(&mut worker.garbled, true) {
            self.story.problem(&"the worker sent what is no message; this and any more of it is dropped");
        }
    }

    fn handle(&mut self, message: ToInit, fd: Option<OwnedFd>) {
        match message {
            ToInit::Ping => {
                if let Some(worker) = &mut self.worker {
                    worker.silent = 0;
                }
            }
            ToInit::Store { key } => match fd {
                Some(fd) if self.store.len() < STORE_CAPACITY || self.store.contains_key(&key) => {
                    let replaced = self.store.insert(key, Arc::new(fd));
                    replaced.into_iter().for_each(|fd| self.closer.close(fd));
                }
                _ => self.story.problem(&format_args!("cannot keep the worker's descriptor {key:#x}")),
            },
            ToInit::Forget { first, which } => {
                let keys = (0..u32::BITS).filter(|bit| which >> bit & 1 == 1);
                let keys = keys.map(|bit| first.wrapping_add(bit.into()));
                keys.filter_map(|key| self.store.remove(&key)).for_each(|fd| self.closer.close(fd));
            }
            ToInit::Expect => self.exits.expect(),
            ToInit::Settle { pid } => {
                if !self.exits.settle(pid) {
                    self.story.problem(&"too many processes: the end of the newest will not be told");
                }
            }
            ToInit::Acknowledge { pid } => self.exits.acknowledge(pid),
            ToInit::Shutdown => self.ending = true,
        }
    }

    /// Reaps; true if there may be more.
    fn reap(&mut self) -> bool {
        for _ in 0..ROUNDS {
            let reaped: Vec<_> =
                std::iter::from_fn(|| wait::reap().ok().flatten()).take(REAPED_AT_ONCE).collect();
            if reaped.is_empty() {
                return false;
            }
            self.read_messages();
            for reaped in reaped {
                if self.worker.as_ref().is_some_and(|worker| worker.pid == reaped.pid) {
                    self.worker_died(reaped.status);
                } else if self.launcher == Some(reaped.pid) {
                    self.launcher_died(reaped.status);
                } else {
                    self.exits.reaped(reaped);
                }
            }
        }
        true
    }

    fn worker_died(&mut self, status: i32) {
        self.worker = None;
        self.exits.worker_died();
        if let Some(launcher) = self.launcher {
            signal(launcher, Signal::SIGKILL);
        }
        self.pause("the worker ended and is started again", status);
    }

    fn launcher_died(&mut self, status: i32) {
        self.launcher = None;
        match &self.worker {
            None => {}
            // It goes of its own accord only when the worker has closed its link, which a dying one does.
            Some(_) if status == 0 => self.lose_worker(),
            Some(_) => self.pause("the launcher ended and is started again", status),
        }
    }

    fn pause(&mut self, what: &str, status: i32) {
        let now = Instant::now();
        let pause = self.backoff.died(now);
        self.restart_at = self.restart_at.max(now + pause);
        self.story.event(&what, &[("status", &status), ("pause_ms", &pause.as_millis())]);
    }

    /// The link is broken but the process is there: it can do nothing useful any more.
    fn lose_worker(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.link = None;
            signal(worker.pid, Signal::SIGKILL);
        }
    }

    fn watchdog(&mut self) {
        let now = Instant::now();
        if now < self.tick_at {
            return;
        }
        self.tick_at = now + TICK;
        if let Some(worker) = &mut self.worker {
            worker.silent += 1;
            // The first tick may follow a sign of life at once, so the sixth is the first that proves 10 s.
            match worker.silent {
                0..6 => {}
                6 => {
                    self.story.problem(&"the worker is silent for 10 s; it is aborted");
                    signal(worker.pid, Signal::SIGABRT);
                }
                7 => signal(worker.pid, Signal::SIGKILL),
                // The kernel holds one of its threads, say over a file system that does not answer. None of
                // them will run again.
                _ => {
                    self.story.problem(&"the worker cannot be killed and is left behind");
                    self.worker_died(KILLED);
                }
            }
        }
    }

    /// Starts what is not there.
    fn keep_roles(&mut self) {
        let wanted = match (&self.worker, self.launcher) {
            (None, None) => true,
            (Some(worker), None) => worker.link.is_some(),
            // While one of an old pair lives nothing is started: see the picture above.
            (_, Some(_)) => false,
        };
        if !wanted || Instant::now() < self.restart_at {
            return;
        }
        if let Err(error) = self.start_roles() {
            self.story.problem(&format_args!("cannot start a role, trying again: {error}"));
            self.restart_at = Instant::now() + Duration::from_secs(1);
        }
    }

    fn start_roles(&mut self) -> io::Result<()> {
        let fresh = self.worker.is_none();
        if fresh {
            let (own, theirs) = link_pair(SockFlag::SOCK_NONBLOCK)?;
            let pid = self.program.start("worker", theirs)?;
            let outbox = self.hand_over();
            self.worker =
                Some(Worker { pid, link: Some(own), outbox, full: false, silent: 0, garbled: false });
            self.generation = self.generation.saturating_add(1);
        }
        let launcher = self.start_launcher();
        if let Some(worker) = self.worker.as_mut() {
            worker.outbox.extend(fresh.then_some((ToWorker::Ready, None)));
        }
        launcher
    }

    fn start_launcher(&mut self) -> io::Result<()> {
        let (workers, launchers) = link_pair(SockFlag::empty())?;
        let pid = self.program.start("launcher", launchers)?;
        self.launcher = Some(pid);
        if let Some(worker) = self.worker.as_mut() {
            worker.outbox.push_back((ToWorker::Launcher { pid }, Some(Arc::new(workers))));
        }
        Ok(())
    }

    fn hand_over(&self) -> VecDeque<(ToWorker, Option<Arc<OwnedFd>>)> {
        let hello = ToWorker::Hello { generation: self.generation, pid1: self.pid1 };
        let stages = self.story.stages().iter();
        let stages = stages.map(|(name, at)| (ToWorker::Stage { name: name.clone(), at: *at }, None));
        let listeners = self.listeners.iter();
        let listeners =
            listeners.map(|it| (ToWorker::Listener { kind: it.kind }, Some(Arc::clone(&it.socket))));
        let records = self.records.iter().map(|pipe| (ToWorker::Records, Some(Arc::clone(pipe))));
        let stored = self.store.iter();
        let stored = stored.map(|(&key, fd)| (ToWorker::Stored { key }, Some(Arc::clone(fd))));
        [(hello, None)].into_iter().chain(stages).chain(listeners).chain(records).chain(stored).collect()
    }

    /// Sends what the worker should know, as far as the link takes it without waiting.
    fn send(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        worker.full = false;
        while let Some(link) = &worker.link {
            let exit = self.exits.untold().map(|it| ToWorker::Exit { pid: it.pid, status: it.status });
            let (frame, fd) = match (worker.outbox.front(), exit) {
                (Some((message, fd)), _) => (message.encode(), fd.as_deref()),
                (None, Some(exit)) => (exit.encode(), None),
                (None, None) => return,
            };
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            match scm::send(link.as_fd(), &frame, &fds) {
                Ok(_) if worker.outbox.pop_front().is_none() => self.exits.told(),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return worker.full = true,
                Err(_) => return self.lose_worker(),
            }
        }
    }
}

/// Only ever called with a child that is not reaped yet, whose number therefore names no other process.
fn signal(pid: i32, signal: Signal) {
    // ESRCH is impossible and EPERM cannot be helped.
    let _ = kill(Pid::from_raw(pid), signal);
}
