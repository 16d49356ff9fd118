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

use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet, VecDeque},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustjail::{
    launch::{Launch, Spawned},
    sys::{memfd, scm},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{Mutex, Notify},
    task::AbortHandle,
    time::{MissedTickBehavior, interval, timeout},
};

pub use crate::link::ListenerKind;
use crate::{
    init::STORE_CAPACITY,
    link::{self, FRAME_SIZE, LaunchReply, LaunchRequest, ToInit, ToWorker, launch::REPLY_SIZE},
    reactor::register,
};

/// Init takes six times this for a sign that the reactor is stuck.
const PING: Duration = Duration::from_secs(2);

/// How long a launch waits for init to replace a dead launcher. Init's longest pause is one second.
const LAUNCHER_PATIENCE: Duration = Duration::from_secs(10);

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

/// The worker's handle; single-threaded, shared by `Rc`.
#[derive(Debug)]
pub struct Supervisor {
    shared: Rc<Shared>,
    tasks: [AbortHandle; 3],
}

#[derive(Debug)]
struct Shared {
    link: AsyncFd<OwnedFd>,
    /// Init closed the link: it is gone, and so will this process be.
    lost: Cell<bool>,
    outbox: RefCell<VecDeque<(ToInit, Option<OwnedFd>)>>,
    outbox_filled: Notify,
    exits: RefCell<VecDeque<Exit>>,
    exit_came: Notify,
    /// What init's store holds, to refuse here what it would have to refuse.
    keys: RefCell<HashSet<Key>>,
    /// Held for one launch at a time; the launcher does them one by one anyhow.
    launcher: Mutex<Option<AsyncFd<OwnedFd>>>,
    successor: RefCell<Option<AsyncFd<OwnedFd>>>,
    successor_came: Notify,
    requests: Cell<u64>,
    /// The newest launcher, and how many there were in this process's life.
    launcher_pid: Cell<i32>,
    launchers: Cell<u64>,
}

impl Supervisor {
    /// Takes over the link this process was started with and waits for init's hand-over. Needs a `LocalSet`.
    pub async fn connect() -> io::Result<(Self, Handover)> {
        Self::connect_over(link::inherited()?).await
    }

    async fn connect_over(link: OwnedFd) -> io::Result<(Self, Handover)> {
        let shared = Rc::new(Shared {
            link: register(link, Interest::READABLE | Interest::WRITABLE)?,
            lost: Cell::default(),
            outbox: RefCell::default(),
            outbox_filled: Notify::new(),
            exits: RefCell::default(),
            exit_came: Notify::new(),
            keys: RefCell::default(),
            launcher: Mutex::new(None),
            successor: RefCell::default(),
            successor_came: Notify::new(),
            requests: Cell::default(),
            launcher_pid: Cell::default(),
            launchers: Cell::default(),
        });
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
        let mut keys = self.shared.keys.borrow_mut();
        if keys.len() >= STORE_CAPACITY && !keys.contains(&key) {
            return Err(io::Error::from_raw_os_error(libc::ENFILE));
        }
        self.shared.tell(ToInit::Store { key: key.0 }, Some(fd.try_clone_to_owned()?))?;
        keys.insert(key);
        Ok(())
    }

    /// Removes a descriptor from the store; an unknown key is ignored.
    pub fn forget(&self, key: Key) -> io::Result<()> {
        self.shared.keys.borrow_mut().remove(&key);
        self.shared.tell(ToInit::Forget { key: key.0 }, None)
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

    /// Lets init forget how `pid` ended.
    pub fn acknowledge(&self, pid: i32) -> io::Result<()> {
        self.shared.tell(ToInit::Acknowledge { pid }, None)
    }

    /// The launcher's process, and how many were replaced in this process's life.
    pub fn launcher(&self) -> (i32, u64) {
        (self.shared.launcher_pid.get(), self.shared.launchers.get().saturating_sub(1))
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

impl Shared {
    fn alive(&self) -> io::Result<()> {
        if self.lost.get() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Sends at once if that is possible and nothing else waits, otherwise soon.
    fn tell(&self, message: ToInit, fd: Option<OwnedFd>) -> io::Result<()> {
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
    async fn flush(&self) -> io::Result<()> {
        self.link.async_io(Interest::WRITABLE, |_| self.send_some()).await
    }

    async fn write_forever(self: Rc<Self>) {
        while self.alive().is_ok() {
            self.outbox_filled.notified().await;
            if self.flush().await.is_err() {
                self.lose();
            }
        }
    }

    async fn ping_forever(self: Rc<Self>) {
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

    async fn read_forever(self: Rc<Self>) {
        loop {
            match self.receive().await {
                Ok((ToWorker::Exit { pid, status }, _)) => {
                    self.exits.borrow_mut().push_back(Exit { pid, status });
                    self.exit_came.notify_one();
                }
                Ok((ToWorker::Launcher { pid }, Some(fd))) => self.succeed(pid, fd),
                // Nothing else is sent after READY.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Err(_) => return self.lose(),
            }
        }
    }

    async fn hand_over(&self) -> io::Result<Handover> {
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
                (ToWorker::Launcher { pid }, Some(fd)) => self.succeed(pid, fd),
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
        self.successor_came.notify_one();
    }

    fn succeed(&self, pid: i32, fd: OwnedFd) {
        self.launcher_pid.set(pid);
        self.launchers.set(self.launchers.get() + 1);
        // Registration fails only without a reactor or memory; the launch that needs it then times out.
        *self.successor.borrow_mut() = register(fd, Interest::READABLE | Interest::WRITABLE).ok();
        self.successor_came.notify_one();
    }

    async fn launch(&self, plan: &[u8], fds: &[OwnedFd]) -> Result<Spawned, LaunchError> {
        let plan = memfd::sealed("berth-plan", plan).map_err(LaunchError::Clone)?;
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(&plan).chain(fds).map(AsFd::as_fd).collect();
        let mut launcher = self.launcher.lock().await;
        let mut expectation = Expectation::new(self).map_err(LaunchError::Unreachable)?;
        self.flush().await.map_err(LaunchError::Unreachable)?;

        for _ in 0..2 {
            if let Some(successor) = self.successor.borrow_mut().take() {
                *launcher = Some(successor);
            }
            if launcher.is_none() {
                *launcher = Some(self.await_successor().await?);
            }
            let Some(link) = launcher.as_ref() else { break };
            match self.exchange(link, &fds).await {
                Ok(spawned) => {
                    expectation.settle(spawned.pid);
                    return Ok(spawned);
                }
                Err(Exchange::Unread) => *launcher = None,
                Err(Exchange::Failed(error)) => return Err(error),
            }
        }
        Err(LaunchError::Unreachable(io::ErrorKind::ConnectionReset.into()))
    }

    async fn await_successor(&self) -> Result<AsyncFd<OwnedFd>, LaunchError> {
        let came = async {
            loop {
                self.alive()?;
                if let Some(successor) = self.successor.borrow_mut().take() {
                    return Ok(successor);
                }
                self.successor_came.notified().await;
            }
        };
        let came = timeout(LAUNCHER_PATIENCE, came).await;
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

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read, thread::JoinHandle};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use rustjail::sys::pidfd;
    use tokio::{runtime::Builder, task::LocalSet};

    use super::*;

    fn pair(flags: SockFlag) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags | SockFlag::SOCK_CLOEXEC).unwrap()
    }

    /// Init's end of a link, used without waiting for what is surely there.
    struct FakeInit(OwnedFd);

    impl FakeInit {
        fn say(&self, message: &ToWorker, fd: Option<BorrowedFd<'_>>) {
            scm::send(self.0.as_fd(), &message.encode(), fd.as_slice()).unwrap();
        }

        /// Everything but pings, up to now.
        fn heard(&self) -> Vec<ToInit> {
            let mut heard = Vec::new();
            let mut frame = [0; FRAME_SIZE];
            while let Ok(received) = scm::receive(self.0.as_fd(), &mut frame) {
                if received.length == 0 {
                    break;
                }
                heard.push(ToInit::decode(&frame).unwrap());
            }
            heard.retain(|message| *message != ToInit::Ping);
            heard
        }

        /// A launcher that answers `answers` requests and then dies with or without reading one more.
        fn new_launcher(&self, answers: u64, reads_one_more: bool) -> JoinHandle<()> {
            let (workers, own) = pair(SockFlag::empty());
            // As init does: the worker's end does not block.
            nix::fcntl::fcntl(&workers, nix::fcntl::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
            self.say(&ToWorker::Launcher { pid: 9 }, Some(workers.as_fd()));
            std::thread::spawn(move || {
                let mut packet = [0; 16];
                for _ in 0..answers {
                    let received = scm::receive(own.as_fd(), &mut packet).unwrap();
                    if received.length == 0 {
                        return;
                    }
                    let LaunchRequest { id } = LaunchRequest::decode(&packet[..received.length]).unwrap();
                    let mut plan = String::new();
                    File::from(received.fds.into_iter().next().unwrap()).read_to_string(&mut plan).unwrap();
                    let process = pidfd::open(1).unwrap();
                    // A reply to a request whose caller is gone comes first.
                    let stale =
                        LaunchReply::Failed { id: id.wrapping_sub(1), errno: 1, text: "stale".into() };
                    scm::send(own.as_fd(), &stale.encode(), &[]).unwrap();
                    let reply = match plan.parse() {
                        Ok(pid) => LaunchReply::Made { id, pid },
                        Err(_) => LaunchReply::Failed { id, errno: libc::ENOMEM, text: plan },
                    };
                    scm::send(own.as_fd(), &reply.encode(), &[process.as_fd()]).unwrap();
                }
                let mut ready = [nix::poll::PollFd::new(own.as_fd(), nix::poll::PollFlags::POLLIN)];
                nix::poll::poll(&mut ready, nix::poll::PollTimeout::NONE).unwrap();
                if reads_one_more {
                    scm::receive(own.as_fd(), &mut packet).unwrap();
                }
            })
        }
    }

    fn with_supervisor<F: Future<Output = ()>>(test: impl FnOnce(FakeInit, Supervisor, Handover) -> F) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let (own, theirs) = pair(SockFlag::SOCK_NONBLOCK);
            let init = FakeInit(own);
            let (reader, writer) = io::pipe().unwrap();
            init.say(&ToWorker::Hello { generation: 3, pid1: true }, None);
            init.say(&ToWorker::Stage { name: "mounts".into(), at: 17 }, None);
            init.say(&ToWorker::Listener { kind: ListenerKind::Rpc }, Some(reader.as_fd()));
            init.say(&ToWorker::Stored { key: 9 }, Some(writer.as_fd()));
            init.say(&ToWorker::Ready, None);
            let (supervisor, handover) = Supervisor::connect_over(theirs).await.unwrap();
            test(init, supervisor, handover).await;
        });
    }

    #[test]
    fn the_handover_is_complete() {
        with_supervisor(async |_init, _supervisor, handover| {
            assert_eq!((handover.generation, handover.pid1), (3, true));
            assert_eq!(handover.stages, [("mounts".to_owned(), 17)]);
            assert_eq!(handover.listeners.len(), 1);
            assert!(handover.stored.contains_key(&Key(9)));
        });
    }

    #[test]
    fn a_launch_is_expected_before_and_settled_after() {
        with_supervisor(async |init, supervisor, _| {
            let launcher = init.new_launcher(2, false);
            supervisor.store(Key(1), init.0.as_fd()).unwrap();
            assert_eq!(supervisor.shared.launch(b"77", &[]).await.unwrap().pid, 77);
            let failed = supervisor.shared.launch(b"no memory at all", &[]).await;
            assert!(
                matches!(&failed, Err(LaunchError::Clone(error)) if error.kind() == io::ErrorKind::OutOfMemory)
            );
            assert!(failed.unwrap_err().to_string().ends_with("no memory at all"));
            supervisor.acknowledge(77).unwrap();
            assert_eq!(
                init.heard(),
                [
                    ToInit::Store { key: 1 },
                    ToInit::Expect,
                    ToInit::Settle { pid: Some(77) },
                    ToInit::Expect,
                    ToInit::Settle { pid: None },
                    ToInit::Acknowledge { pid: 77 },
                ]
            );
            drop(supervisor);
            tokio::task::yield_now().await;
            launcher.join().unwrap();
        });
    }

    #[test]
    fn a_launch_that_was_never_read_is_done_by_the_next_launcher() {
        with_supervisor(async |init, supervisor, _| {
            let first = init.new_launcher(1, false);
            assert_eq!(supervisor.shared.launch(b"5", &[]).await.unwrap().pid, 5);
            let shared = Rc::clone(&supervisor.shared);
            let launch = crate::task::spawn(async move { shared.launch(b"6", &[]).await });
            while !first.is_finished() {
                tokio::task::yield_now().await;
            }
            let _second = init.new_launcher(1, false);
            assert_eq!(launch.await.unwrap().unwrap().pid, 6);
            assert_eq!(init.heard().last(), Some(&ToInit::Settle { pid: Some(6) }));
        });
    }

    #[test]
    fn a_launch_that_was_under_way_is_not_done_twice() {
        with_supervisor(async |init, supervisor, _| {
            let _dying = init.new_launcher(0, true);
            let result = supervisor.shared.launch(b"6", &[]).await;
            assert!(matches!(result, Err(LaunchError::Unreachable(_))), "{result:?}");
            assert_eq!(init.heard(), [ToInit::Expect, ToInit::Settle { pid: None }]);
            let _next = init.new_launcher(1, false);
            assert_eq!(supervisor.shared.launch(b"7", &[]).await.unwrap().pid, 7);
        });
    }

    #[test]
    fn exits_come_in_order_and_the_end_of_init_is_an_error() {
        with_supervisor(async |init, supervisor, _| {
            for status in 0..100 {
                init.say(&ToWorker::Exit { pid: 4, status }, None);
            }
            drop(init);
            for status in 0..100 {
                assert_eq!(supervisor.next_exit().await.unwrap(), Exit { pid: 4, status });
            }
            assert!(supervisor.next_exit().await.is_err());
            assert!(supervisor.acknowledge(4).is_err());
        });
    }

    #[test]
    fn what_init_does_not_read_at_once_is_sent_in_order_later() {
        with_supervisor(async |init, supervisor, _| {
            for key in 0..2_000 {
                supervisor.store(Key(key), init.0.as_fd()).unwrap();
            }
            let mut heard = Vec::new();
            while heard.len() < 2_000 {
                heard.extend(init.heard());
                tokio::task::yield_now().await;
            }
            let sent: Vec<ToInit> = (0..2_000).map(|key| ToInit::Store { key }).collect();
            assert_eq!(heard, sent);
        });
    }

    #[test]
    fn the_store_has_an_end() {
        with_supervisor(async |init, supervisor, _| {
            supervisor.shared.keys.borrow_mut().extend((0..STORE_CAPACITY as u64).map(Key));
            let full = supervisor.store(Key(u64::MAX), init.0.as_fd()).unwrap_err();
            assert_eq!(full.raw_os_error(), Some(libc::ENFILE));
            supervisor.store(Key(0), init.0.as_fd()).unwrap();
            supervisor.forget(Key(1)).unwrap();
            supervisor.store(Key(u64::MAX), init.0.as_fd()).unwrap();
        });
    }
}
