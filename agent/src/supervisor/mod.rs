//! The worker's side of its link to init and to the launcher.
//!
//! Everything sent to init is a fixed-size message on a non-blocking socket and is applied in order, so a
//! descriptor stored before a launch is safe before the process exists. Exit statuses stay with init until
//! [`Supervisor::acknowledge`]; a worker that dies first is told them again. The launcher may be replaced at
//! any time: a launch that it had not begun is done by the new one, and one that it was just doing fails, because
//! doing it twice could make two processes.
//!
//! ```text
//!   launch:  EXPECT to init -> request to launcher -> reply -> SETTLE pid
//!               ^                  |        |           \--failed--> SETTLE none
//!               |  never read      |        |  died doing it
//!               +--new launcher----+        +----------------------> SETTLE none
//! ```

mod launch;
mod shared;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    rc::Rc,
};

use rustjail::launch::{Launch, Spawned};
use tokio::task::AbortHandle;

pub use self::launch::LaunchError;
use self::shared::Shared;
pub use crate::link::ListenerKind;
use crate::{
    init::STORE_CAPACITY,
    link::{self, ToInit},
};

/// Names a descriptor in init's store. The worker chooses it and writes it in its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Key(pub u64);

/// How a process ended, as `waitid(2)` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// In init's PID namespace.
    pub pid: i32,
    /// The exit code, or 128 + the signal's number.
    pub status: i32,
}

/// What init hands to a worker when it starts.
#[derive(Debug, Default)]
pub struct Handover {
    /// Listening sockets, bound and open since boot.
    pub listeners: Vec<(ListenerKind, OwnedFd)>,
    /// Descriptors that earlier workers stored.
    pub stored: HashMap<Key, OwnedFd>,
    /// 0 for the first worker since boot.
    pub generation: u32,
    /// Boot stages in order: name, and nanoseconds on CLOCK_BOOTTIME at which each ended.
    pub stages: Vec<(String, u64)>,
    /// Whether init is PID 1 of the machine.
    pub pid1: bool,
    /// The reading end of the pipe that all roles' log records go through, where there is a port to read them at.
    pub records: Option<OwnedFd>,
}

/// What becomes of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Sync and power off where init is PID 1, else end.
    PowerOff,
}

/// The worker's handle; single-threaded, shared by `Rc`.
#[derive(Debug)]
pub struct Supervisor {
    shared: Rc<Shared>,
    tasks: [AbortHandle; 3],
}

impl Supervisor {
    /// Takes over the link this process was started with and waits for init's hand-over. Needs a `LocalSet`.
    pub async fn connect() -> io::Result<(Self, Handover)> {
        Self::connect_over(link::inherited()?).await
    }

    async fn connect_over(link: OwnedFd) -> io::Result<(Self, Handover)> {
        let shared = Rc::new(Shared::over(link)?);
        let handover = shared.hand_over().await?;
        shared.keys.borrow_mut().extend(handover.stored.keys());
        let tasks = [
            crate::task::spawn(Rc::clone(&shared).read_forever()).abort_handle(),
            crate::task::spawn(Rc::clone(&shared).write_forever()).abort_handle(),
            crate::task::spawn(Rc::clone(&shared).ping_forever()).abort_handle(),
        ];
        Ok((Self { shared, tasks }, handover))
    }

    /// Puts a copy of `fd` into the store.
    pub fn store(&self, key: Key, fd: BorrowedFd<'_>) -> io::Result<()> {
        let copy = self.copy(key, fd)?;
        self.shared.tell(ToInit::Store { key: key.0 }, Some(copy))
    }

    /// Puts a copy of `fd` into the store by the next launch.
    pub fn store_for_launch(&self, key: Key, fd: BorrowedFd<'_>) -> io::Result<()> {
        let copy = self.copy(key, fd)?;
        self.shared.tell_later(ToInit::Store { key: key.0 }, Some(copy))
    }

    /// A copy of `fd`, for which the store has room from now on.
    fn copy(&self, key: Key, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let mut keys = self.shared.keys.borrow_mut();
        if keys.len() >= STORE_CAPACITY && !keys.contains(&key) {
            return Err(io::Error::from_raw_os_error(libc::ENFILE));
        }
        let copy = fd.try_clone_to_owned()?;
        keys.insert(key);
        Ok(copy)
    }

    /// Removes a descriptor from the store, soon; an unknown key is ignored. A worker that dies first leaves one that
    /// its successor's journal does not name.
    pub fn forget(&self, key: Key) -> io::Result<()> {
        self.shared.keys.borrow_mut().remove(&key);
        self.shared.tell_later(ToInit::Forget { first: key.0, which: 1 }, None)
    }

    /// Has the launcher make a process. Its exit is kept by init from the instant it exists.
    pub async fn launch(&self, launch: Launch) -> Result<Spawned, LaunchError> {
        let bytes = launch.plan.to_bytes().map_err(LaunchError::Clone)?;
        self.shared.launch(&bytes, &launch.fds).await
    }

    /// The next exit of a launched process; repeated by init until acknowledged. One caller at a time.
    pub async fn next_exit(&self) -> io::Result<Exit> {
        loop {
            if let Some(exit) = self.shared.exits.borrow_mut().pop_front() {
                return Ok(exit);
            }
            self.shared.alive()?;
            self.shared.exit_came.notified().await;
        }
    }

    /// Lets init forget how `pid` ended, soon: a worker that dies first is told once more.
    pub fn acknowledge(&self, pid: i32) -> io::Result<()> {
        self.shared.tell_later(ToInit::Acknowledge { pid }, None)
    }

    /// The launcher's process, and how many were replaced in this process's life.
    pub fn launcher(&self) -> (i32, u64) {
        self.shared.launcher.told()
    }

    /// Messages that init has not taken yet, and exits that nobody has taken yet.
    pub fn queued(&self) -> (usize, usize) {
        (self.shared.outbox.borrow().len(), self.shared.exits.borrow().len())
    }

    /// Whether init is there.
    pub fn is_connected(&self) -> bool {
        self.shared.alive().is_ok()
    }

    /// Asks init to end the machine.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match how {
            Shutdown::PowerOff => self.shared.tell(ToInit::Shutdown, None),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
