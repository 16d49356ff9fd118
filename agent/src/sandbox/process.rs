//! One process that the agent launched: a container's init or an exec.
//!
//! ```text
//!   intended (journalled, descriptors stored) --launched--> alive --reaped--> exited
//! ```
//!
//! Its descriptors live in init's store under keys derived from one base number, so the store itself says
//! which of them still exist; the journal holds only the base. An exited process is kept until its status
//! has been asked for and its output has been read to the end.

use std::{
    cell::{Cell, RefCell},
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
};

use tokio::{io::unix::AsyncFd, task::AbortHandle};

use super::{Output as OutputName, latch::Latch};
use crate::{
    stdio::{input::Input, output::Output, terminal::Terminal},
    supervisor::Key,
};

/// The keys of one process: a base and a place for each descriptor it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Keys(pub(crate) u64);

/// The descriptors of a process that outlive a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Pidfd,
    Sync,
    Stdin,
    Stdout,
    Stderr,
    Console,
    RawStdin,
    RawStdout,
    RawStderr,
}

impl Held {
    pub(crate) const ALL: [Self; 9] = [
        Self::Pidfd,
        Self::Sync,
        Self::Stdin,
        Self::Stdout,
        Self::Stderr,
        Self::Console,
        Self::RawStdin,
        Self::RawStdout,
        Self::RawStderr,
    ];
}

impl Keys {
    /// How many keys a process takes, used or not.
    pub(crate) const STRIDE: u64 = 16;

    pub(crate) fn of(self, held: Held) -> Key {
        Key(self.0.wrapping_add(held as u64))
    }
}

/// The streams of a process that are served by RPC; `None` is closed, at its end, or raw. That an output is at
/// its end still has to be told to whoever reads it, even when its descriptor is gone.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) stdin: RefCell<Option<Rc<Input>>>,
    pub(crate) stdout: RefCell<Option<Rc<Output>>>,
    pub(crate) stderr: RefCell<Option<Rc<Output>>>,
    pub(crate) terminal: RefCell<Option<Rc<Terminal>>>,
    stdout_end_told: Cell<bool>,
    stderr_end_told: Cell<bool>,
}

impl Streams {
    /// Somebody has been told that the output is at its end.
    pub(crate) fn end_told(&self, which: OutputName) {
        match which {
            OutputName::Stdout => self.stdout_end_told.set(true),
            OutputName::Stderr => self.stderr_end_told.set(true),
        }
    }

    pub(crate) fn output(&self, which: OutputName) -> Option<Rc<Output>> {
        match which {
            OutputName::Stdout => self.stdout.borrow().clone(),
            OutputName::Stderr => self.stderr.borrow().clone(),
        }
    }

    /// Drops them all.
    pub(crate) fn close(&self) {
        self.stdin.take();
        self.stdout.take();
        self.stderr.take();
        self.terminal.take();
    }
}

/// Which streams of a process go to connections of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Raw {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Process {
    /// The container's id for its init.
    pub(crate) exec_id: String,
    pub(crate) keys: Keys,
    pub(crate) terminal: bool,
    pub(crate) raw: Raw,
    /// 0 until it has been launched.
    pub(crate) pid: Cell<i32>,
    /// Until it has been reaped.
    pub(crate) pidfd: RefCell<Option<Arc<OwnedFd>>>,
    /// The maker's end of the launch protocol, until execve.
    pub(crate) sync: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    /// Its program has been reached: execve for an exec, `Ready` for an init.
    pub(crate) launched: Cell<bool>,
    /// It may exist although its pid is not known: whoever asked for it did not get the answer.
    pub(crate) maybe_made: Cell<bool>,
    pub(crate) exit: Latch<i32>,
    /// Somebody has been told the exit status.
    pub(crate) waited: Cell<bool>,
    pub(crate) streams: Streams,
    /// Tasks that move raw streams.
    pub(crate) pumps: RefCell<Vec<AbortHandle>>,
    /// How many of them still move output.
    pub(crate) pumping: Cell<usize>,
    /// One bit for each descriptor that init holds.
    held: Cell<u16>,
}

impl Process {
    pub(crate) fn new(exec_id: &str, keys: Keys, terminal: bool, raw: Raw) -> Self {
        Self {
            exec_id: exec_id.to_owned(),
            keys,
            terminal,
            raw,
            pid: Cell::new(0),
            pidfd: RefCell::new(None),
            sync: RefCell::new(None),
            launched: Cell::new(false),
            maybe_made: Cell::new(false),
            exit: Latch::new(),
            waited: Cell::new(false),
            streams: Streams::default(),
            pumps: RefCell::default(),
            pumping: Cell::new(0),
            held: Cell::new(0),
        }
    }

    /// Notes that init holds, or no longer holds, one of its descriptors; answers what was so before.
    pub(crate) fn note_held(&self, held: Held, now: bool) -> bool {
        let bit = 1 << held as u16;
        let before = self.held.get();
        self.held.set(if now { before | bit } else { before & !bit });
        before & bit != 0
    }

    /// Nothing about it is left to be told.
    pub(crate) fn is_spent(&self) -> bool {
        self.exit.get().is_some() && self.waited.get() && self.output_told() && self.pumping.get() == 0
    }

    fn output_told(&self) -> bool {
        let stdout = self.raw.stdout || self.streams.stdout_end_told.get();
        let stderr = self.raw.stderr || self.streams.stderr_end_told.get();
        // Standard error of a terminal is the terminal, and few hosts read it.
        if self.terminal { stdout || stderr } else { stdout && stderr }
    }
}
