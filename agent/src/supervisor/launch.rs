//! One launch at a time: said to init, asked of the launcher, settled with init whatever came of it.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustjail::{
    launch::Spawned,
    sys::{memfd, scm},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Mutex, Notify},
    time::timeout,
};

use super::shared::Shared;
use crate::{
    link::{LaunchReply, LaunchRequest, ToInit, launch::REPLY_SIZE},
    reactor::register,
};

/// How long a launch waits for init to replace a dead launcher. Init's longest pause is one second.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a launch did not come about.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The launcher answered that the clone failed.
    #[error("cannot clone the container process: {0}")]
    Clone(io::Error),
    /// The launcher could not be reached, its successor neither; or it died while it made the process.
    #[error("the launcher does not answer: {0}")]
    Unreachable(io::Error),
}

/// The launcher as the worker knows it: whom it speaks to, and who has come since.
#[derive(Debug, Default)]
pub(super) struct Launcher {
    /// Held for one launch at a time; the launcher does them one by one anyhow.
    link: Mutex<Option<AsyncFd<OwnedFd>>>,
    successor: RefCell<Option<AsyncFd<OwnedFd>>>,
    successor_came: Notify,
    requests: Cell<u64>,
    /// The newest launcher, and how many there were in this process's life.
    pid: Cell<i32>,
    came: Cell<u64>,
}

impl Launcher {
    /// The newest one's process, and how many were replaced in this process's life.
    pub(super) fn told(&self) -> (i32, u64) {
        (self.pid.get(), self.came.get().saturating_sub(1))
    }

    /// Init made a launcher.
    pub(super) fn succeed(&self, pid: i32, fd: OwnedFd) {
        self.pid.set(pid);
        self.came.set(self.came.get() + 1);
        // Registration fails only without a reactor or memory; the launch that needs it then times out.
        *self.successor.borrow_mut() = register(fd, Interest::READABLE | Interest::WRITABLE).ok();
        self.wake();
    }

    /// Has a launch that waits for a successor look again.
    pub(super) fn wake(&self) {
        self.successor_came.notify_one();
    }

    async fn successor(&self, init: &Shared) -> Result<AsyncFd<OwnedFd>, LaunchError> {
        let came = async {
            loop {
                init.alive()?;
                if let Some(successor) = self.successor.borrow_mut().take() {
                    return Ok(successor);
                }
                self.successor_came.notified().await;
            }
        };
        let came = timeout(PATIENCE, came).await;
        came.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(LaunchError::Unreachable)
    }

    async fn exchange(&self, link: &AsyncFd<OwnedFd>, fds: &[BorrowedFd<'_>]) -> Result<Spawned, Exchange> {
        let id = self.requests.get();
        self.requests.set(id.wrapping_add(1));
        let request = LaunchRequest { id }.encode();
        match link.async_io(Interest::WRITABLE, |fd| scm::send(fd.as_fd(), &request, fds)).await {
            Ok(_) => {}
            Err(error) if vanished(&error) => return Err(Exchange::Unread),
            Err(error) => return Err(Exchange::Failed(LaunchError::Unreachable(error))),
        }
        let mut unread = false;
        loop {
            let mut packet = [0; REPLY_SIZE];
            let received =
                link.async_io(Interest::READABLE, |fd| scm::receive(fd.as_fd(), &mut packet)).await;
            let received = match received {
                // The kernel says this once, before the end of file, to one whose last message was not read.
                Err(error) if vanished(&error) => {
                    unread = true;
                    continue;
                }
                Err(error) => return Err(Exchange::Failed(LaunchError::Unreachable(error))),
                Ok(received) if received.length == 0 => {
                    let died = LaunchError::Unreachable(io::ErrorKind::ConnectionAborted.into());
                    return Err(if unread { Exchange::Unread } else { Exchange::Failed(died) });
                }
                Ok(received) => received,
            };
            let reply = packet.get(..received.length).and_then(LaunchReply::decode);
            match (reply, received.fds.into_iter().next()) {
                // To a launch whose caller went away.
                (Some(reply), _) if reply.id() != id => {}
                (Some(LaunchReply::Made { pid, .. }), Some(pidfd)) => return Ok(Spawned { pid, pidfd }),
                (Some(LaunchReply::Failed { errno, text, .. }), _) => {
                    let kind = io::Error::from_raw_os_error(errno).kind();
                    return Err(Exchange::Failed(LaunchError::Clone(io::Error::new(kind, text))));
                }
                (Some(LaunchReply::Made { .. }) | None, _) => {
                    let error = io::ErrorKind::InvalidData.into();
                    return Err(Exchange::Failed(LaunchError::Unreachable(error)));
                }
            }
        }
    }
}

impl Shared {
    /// Has the launcher make the process of `plan`.
    pub(super) async fn launch(&self, plan: &[u8], fds: &[OwnedFd]) -> Result<Spawned, LaunchError> {
        let plan = memfd::sealed("berth-plan", plan).map_err(LaunchError::Clone)?;
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(&plan).chain(fds).map(AsFd::as_fd).collect();
        let launcher = &self.launcher;
        let mut link = launcher.link.lock().await;
        let mut expectation = Expectation::new(self).map_err(LaunchError::Unreachable)?;
        self.flush().await.map_err(LaunchError::Unreachable)?;

        for _ in 0..2 {
            if let Some(successor) = launcher.successor.borrow_mut().take() {
                *link = Some(successor);
            }
            if link.is_none() {
                *link = Some(launcher.successor(self).await?);
            }
            let Some(to) = link.as_ref() else { break };
            match launcher.exchange(to, &fds).await {
                Ok(spawned) => {
                    expectation.settle(spawned.pid);
                    return Ok(spawned);
                }
                Err(Exchange::Unread) => *link = None,
                Err(Exchange::Failed(error)) => return Err(error),
            }
        }
        Err(LaunchError::Unreachable(io::ErrorKind::ConnectionReset.into()))
    }
}

/// Why an exchange with the launcher brought no process.
enum Exchange {
    /// It died before it read the request.
    Unread,
    Failed(LaunchError),
}

fn vanished(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Init keeps every stranger's exit while one of these lives, so it is settled whatever happens to the launch.
struct Expectation<'a> {
    shared: &'a Shared,
    pid: Option<i32>,
}

impl<'a> Expectation<'a> {
    fn new(shared: &'a Shared) -> io::Result<Self> {
        shared.tell(ToInit::Expect, None)?;
        Ok(Self { shared, pid: None })
    }

    fn settle(&mut self, pid: i32) {
        self.pid = Some(pid);
    }
}

impl Drop for Expectation<'_> {
    fn drop(&mut self) {
        // If the link is gone, so is everything that could be settled.
        let _ = self.shared.tell(ToInit::Settle { pid: self.pid }, None);
    }
}
