//! Taking over from a worker that died.
//!
//! ```text
//!   journal x descriptors held by init --> containers adopted as they are
//!                                      \-> half-made ones and those being removed: taken down
//!                                      \-> half-made execs: killed and forgotten
//!   descriptors that no record names   --> closed
//! ```
//!
//! Exits that happened meanwhile are with init and come like any other once this is done. A launch whose reply
//! the old worker did not live to read may have left a process whose pid nobody knows: its end of the sync
//! socket tells when it has got where it can be found, in the container's cgroup, as a child of init.

use std::{
    collections::HashMap,
    fs,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    rc::Rc,
    sync::Arc,
};

use nix::{
    sys::socket::{Shutdown, shutdown},
    unistd::getppid,
};
use oci_spec::runtime::Spec;
use rustjail::{
    cgroup::{Cgroup, CgroupPath},
    sync,
    sys::pidfd,
};
use tokio::io::Interest;

use super::{
    Core, Phase, Result, blocking, bundle,
    container::Container,
    create::needed_later,
    error::failed_to,
    journal::{ContainerRecord, ProcessRecord, SandboxRecord},
    namespaces::Shared,
    process::{Held, Keys, Process},
    state::State,
    streams::{Ends, Sockets},
};
use crate::{reactor::register, storage::SANDBOX, supervisor::Key};

/// What a process whose end nobody saw is said to have exited with.
const UNKNOWN_STATUS: i32 = 255;

type Stored = HashMap<Key, OwnedFd>;

impl Core {
    pub(super) async fn recover(self: &Rc<Self>, mut stored: Stored) -> Result<()> {
        let loaded = self.journal.load().map_err(failed_to(|| "read the journal".to_owned()))?;
        let (sandbox, containers, quarantined) = loaded;
        for file in quarantined {
            slog::error!(self.log, "a journal file cannot be used and was moved aside";
                "path" => %file.path.display(), "reason" => &file.reason);
        }
        self.skip_used_keys(&stored, &containers);
        let is_user = |user: &str| match user {
            SANDBOX => sandbox.is_some(),
            id => containers.iter().any(|container| container.id == id),
        };
        self.storages.recover(is_user).await?;
        if let Some(sandbox) = sandbox {
            self.adopt_sandbox(sandbox, &mut stored);
        }
        for record in containers {
            self.adopt_container(record, &mut stored).await;
        }
        for key in stored.into_keys() {
            self.supervisor.forget(key).map_err(failed_to(|| "have init close a descriptor".to_owned()))?;
        }
        Ok(())
    }

    fn skip_used_keys(&self, stored: &Stored, containers: &[ContainerRecord]) {
        let recorded =
            containers.iter().flat_map(|c| std::iter::once(&c.init).chain(&c.execs)).map(|p| p.keys.0);
        let last = recorded.chain(stored.keys().map(|key| key.0)).max().unwrap_or(0);
        self.last_key.set(last - last % Keys::STRIDE);
    }

    fn adopt_sandbox(&self, record: SandboxRecord, stored: &mut Stored) {
        self.named.set_sandbox(&record.id);
        match (stored.remove(&record.ipc), stored.remove(&record.uts)) {
            (Some(ipc), Some(uts)) => *self.shared.borrow_mut() = Some(Shared { ipc, uts }),
            _ => slog::error!(self.log, "the sandbox's namespaces are lost; new containers get their own";
                "sandbox" => &record.id),
        }
        self.phase.set(Phase::Present);
        *self.sandbox.borrow_mut() = Some(record);
    }

    async fn adopt_container(self: &Rc<Self>, record: ContainerRecord, stored: &mut Stored) {
        let path = match CgroupPath::parse(Some(&record.cgroup), &record.id) {
            Ok(path) => path,
            Err(error) => {
                slog::error!(self.log, "a container cannot be adopted";
                    "container" => &record.id, "error" => %error);
                return;
            }
        };
        let init = Rc::new(restore(&record.init));
        let half_made = matches!(record.state, State::Creating | State::Removing);
        let state = match record.state {
            State::Created | State::Running | State::Paused if record.init.exit.is_some() => State::Stopped,
            state => state,
        };
        let spec = Arc::new(self.read_spec(&record.id).await);
        let id = record.id.clone();
        let container = Container::new(id, state, spec, path.clone(), record.defines_pidns, Rc::clone(&init));
        *container.pci.borrow_mut() = record.pci.clone();
        container.created.set(!half_made);
        container.oom_told.set(record.oom_told);
        *container.cgroup.borrow_mut() = self.open_cgroup(&record.id, &path, half_made).await;
        self.table.borrow_mut().insert(record.id.clone(), Rc::clone(&container));
        self.adopt_process(&container, &init, stored);
        for exec in &record.execs {
            let process = Rc::new(restore(exec));
            container.execs.borrow_mut().insert(exec.exec_id.clone(), Rc::clone(&process));
            self.adopt_process(&container, &process, stored);
        }
        self.settle_pause(&container).await;
        self.watch_oom(&container).await;
        slog::info!(self.log, "container adopted"; "container" => &record.id, "state" => %state);

        let core = Rc::clone(self);
        crate::task::spawn(async move {
            if half_made {
                if container.init.maybe_made.get() {
                    core.settle(&container, &container.init).await;
                }
                core.undo(&container).await;
            } else {
                core.finish_start(&container).await;
                core.undo_half_made_execs(&container).await;
            }
        });
    }

    /// The group of a recorded container. That of a half-made one may be there in some trees and not in others:
    /// it is completed, so that taking it down takes all of it.
    async fn open_cgroup(&self, id: &str, path: &CgroupPath, half_made: bool) -> Option<Arc<Cgroup>> {
        let (hierarchies, path) = (self.hierarchies.clone(), path.clone());
        let opened = blocking(move || match Cgroup::open(&hierarchies, &path) {
            Err(_incomplete) if half_made => Ok(Cgroup::create(&hierarchies, &path, None)?),
            opened => Ok(opened?),
        });
        match opened.await {
            Ok(cgroup) => Some(Arc::new(cgroup)),
            Err(error) => {
                slog::warn!(self.log, "a container has no cgroup"; "container" => id, "error" => %error);
                None
            }
        }
    }

    async fn read_spec(&self, id: &str) -> Spec {
        let dir = self.journal.bundle(id);
        let read = blocking(move || {
            bundle::read(&dir).map_err(failed_to(|| format!("read the configuration in {}", dir.display())))
        });
        match read.await {
            Ok(spec) => needed_later(&spec),
            Err(error) => {
                slog::warn!(self.log, "a container's configuration is lost; execs in it will fail";
                    "container" => id, "error" => %error);
                Spec::default()
            }
        }
    }

    /// Gives a process back what init held for it, and serves its streams again.
    fn adopt_process(self: &Rc<Self>, container: &Rc<Container>, process: &Rc<Process>, stored: &mut Stored) {
        let mut take = |held| {
            let fd = stored.remove(&process.keys.of(held))?;
            process.note_held(held, true);
            Some(fd)
        };
        let ends = Ends { stdin: take(Held::Stdin), stdout: take(Held::Stdout), stderr: take(Held::Stderr) };
        let sockets = Sockets {
            stdin: take(Held::RawStdin),
            stdout: take(Held::RawStdout),
            stderr: take(Held::RawStderr),
        };
        let (pidfd, sync, console) = (take(Held::Pidfd), take(Held::Sync), take(Held::Console));
        if process.exit.get().is_some() {
            self.release(process, Held::Pidfd);
        } else if process.pid.get() != 0 {
            match pidfd {
                Some(pidfd) => *process.pidfd.borrow_mut() = Some(Arc::new(pidfd)),
                None if process.launched.get() => process.exit.set(UNKNOWN_STATUS),
                None => {}
            }
            if process.exit.get().is_none() {
                self.watch(container, process);
            }
        }
        let sync = sync.map(|sync| register(sync, Interest::READABLE)).transpose();
        let served = sync.and_then(|sync| {
            *process.sync.borrow_mut() = sync.map(Rc::new);
            match console {
                Some(master) => self.serve_terminal(container, process, master, sockets),
                None => self.serve_pipes(container, process, ends, sockets),
            }
        });
        if let Err(error) = served {
            slog::error!(self.log, "the streams of a process are lost";
                "container" => &container.id, "exec" => &process.exec_id, "error" => %error);
        }
    }

    /// A container that was told to start while its worker died: tells it again, which does no harm, and sees
    /// it off.
    async fn finish_start(self: &Rc<Self>, container: &Rc<Container>) {
        let link = container.init.sync.borrow().clone();
        let Some(link) = link.filter(|_| container.state() != State::Created) else {
            return;
        };
        let _gone = sync::start(link.get_ref().as_fd());
        if let Err(error) = self.follow_start(container).await {
            slog::warn!(self.log, "a container did not start";
                "container" => &container.id, "error" => %error);
        }
    }

    async fn undo_half_made_execs(self: &Rc<Self>, container: &Rc<Container>) {
        let execs: Vec<_> = container.execs.borrow().values().cloned().collect();
        for process in execs.into_iter().filter(|process| !process.launched.get()) {
            self.undo_exec(container, &process).await;
        }
    }

    /// Waits until a process that nobody knows has died or got into its cgroup: its end of the sync socket tells. One
    /// that waits to be told something ends, because nothing more is said.
    pub(super) async fn settle(self: &Rc<Self>, container: &Rc<Container>, process: &Rc<Process>) {
        if let Some(link) = process.sync.borrow().as_ref() {
            let _gone = shutdown(link.get_ref().as_raw_fd(), Shutdown::Write);
        }
        let _whatever_it_said = self.await_report(container, process, &mut Sockets::default()).await;
    }

    /// Kills children of init in the container's cgroup that no record names. Orphans of the workload are not
    /// among them: they are children of the first process of their PID namespace.
    pub(super) async fn kill_strangers(&self, container: &Container) {
        let Some(cgroup) = container.cgroup() else { return };
        self.exits.all_known().await;
        let killed = cgroup.pids().map(|pids| {
            let known: Vec<i32> = container.processes().iter().map(|process| process.pid.get()).collect();
            pids.into_iter()
                .filter(|pid| !known.contains(pid) && kill_child_of_init(*pid))
                .collect::<Vec<_>>()
        });
        match killed {
            Ok(killed) => slog::info!(self.log, "unknown processes killed";
                "container" => &container.id, "pids" => ?killed),
            Err(error) => slog::error!(self.log, "unknown processes may be left";
                "container" => &container.id, "error" => %error),
        }
    }
}

/// Answers whether `pid` was one and is killed.
fn kill_child_of_init(pid: i32) -> bool {
    let Ok(process) = pidfd::open(pid) else { return false };
    // Asked after the open, so that the answer is about this very process.
    parent_of(pid) == Some(getppid().as_raw()) && pidfd::signal(process.as_fd(), nix::libc::SIGKILL).is_ok()
}

fn restore(record: &ProcessRecord) -> Process {
    let process = Process::new(&record.exec_id, record.keys, record.terminal, record.raw);
    process.pid.set(record.pid);
    process.launched.set(record.launched);
    process.maybe_made.set(record.pid == 0);
    process.waited.set(record.waited);
    if let Some(status) = record.exit {
        process.exit.set(status);
    }
    process
}

fn parent_of(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}
