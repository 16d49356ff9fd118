//! The sandbox: its containers, their processes, and what they share.
//!
//! One thread, no lock: [`Core`] is shared by `Rc`, every file of this folder adds the methods of one concept to
//! it, and nothing is borrowed over an await. A change of state is one synchronous step; whatever may block runs
//! on a small pool with data of its own. Before a step that would have to be undone, and after one that would
//! have to be known of, the [`journal`] is written; [`recover`] reads it when a worker takes over.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use oci_spec::runtime::{LinuxResources, Process, Spec};
use rustjail::cgroup::Hierarchies;

use crate::{
    config::MemAgent,
    device::{Device, cdi},
    guest::{
        self,
        memory::settings::{Compact, Reclaim},
    },
    hotplug::Hotplug,
    observe::log::Log,
    observe::metrics::{Census, Roles},
    stdio::{peek::Peekers, raw::Waiting},
    storage::{Storage, Storages, volume::Usage},
    supervisor::{Key, Supervisor},
};

mod bundle;
mod census;
mod container;
mod create;
mod destroy;
mod diagnostics;
mod dns;
pub mod error;
mod exec;
mod exits;
mod guest_hooks;
mod hardware;
mod hooks;
mod journal;
mod latch;
mod launch;
mod memory;
mod namespaces;
mod oom;
mod oom_watch;
mod pause;
mod process;
mod recover;
mod remove;
mod resctrl;
mod resources;
#[cfg(feature = "cdh")]
mod secrets;
mod setup;
mod shared_mounts;
mod signal;
mod start;
pub mod state;
mod streams;
mod wait;

pub use error::Error;
pub use oom::OomEvent;
pub use resources::ContainerStats;
pub use shared_mounts::SharedMount;

use census::Moved;
use container::Container;
use error::failed_to;
use exits::Exits;
use journal::{Journal, SandboxRecord};
use memory::MemoryAgent;
use namespaces::Shared;
use oom::OomQueue;

/// The result of every call on the sandbox.
pub type Result<T> = std::result::Result<T, Error>;

/// A host's wish for raw streams: the peer ports of connections it made to the stdio listener; 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StdioPorts {
    /// For standard input.
    pub stdin: u32,
    /// For standard output.
    pub stdout: u32,
    /// For standard error.
    pub stderr: u32,
}

/// One of a process's output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Descriptor 1, or the terminal.
    Stdout,
    /// Descriptor 2, or the terminal.
    Stderr,
}

/// Output that has been looked at but not yet taken: the bytes leave the stream only on [`Chunk::delivered`].
/// Dropping it leaves them for the next reader, so a client that vanished costs no output.
#[derive(Debug)]
pub struct Chunk {
    /// 1..=len bytes; empty at the end of the stream.
    pub data: Vec<u8>,
    seen: streams::Seen,
}

impl Chunk {
    /// The bytes have been handed to the peer's socket.
    pub fn delivered(self) {
        self.seen.delivered();
    }
}

/// What CreateSandbox asks for.
#[derive(Debug, Default)]
pub struct SandboxRequest {
    /// The sandbox's UTS hostname; empty keeps the guest's.
    pub hostname: String,
    /// The sandbox's id; may be empty.
    pub id: String,
    /// Lines for /etc/resolv.conf.
    pub dns: Vec<String>,
    /// Kernel modules to load, with their parameters.
    pub kernel_modules: Vec<(String, Vec<String>)>,
    /// What the sandbox itself uses.
    pub storages: Vec<Storage>,
    /// Where the guest's image has hooks for every container; may be empty.
    pub guest_hooks: PathBuf,
}

/// What CreateContainer asks for.
#[derive(Debug)]
pub struct CreateRequest {
    /// The container's id, also its init's exec id.
    pub id: String,
    /// The OCI configuration.
    pub spec: Spec,
    /// Share the PID namespace of the sandbox's first container.
    pub sandbox_pidns: bool,
    /// Raw streams.
    pub ports: StdioPorts,
    /// What it uses, mounted before it is launched.
    pub storages: Vec<Storage>,
    /// Devices plugged in for it.
    pub devices: Vec<Device>,
    /// Mounts of other containers that it gets.
    pub shared_mounts: Vec<SharedMount>,
}

/// What ExecProcess asks for.
#[derive(Debug)]
pub struct ExecRequest {
    /// The container.
    pub container_id: String,
    /// The new process's id within it.
    pub exec_id: String,
    /// The process.
    pub process: Process,
    /// Raw streams.
    pub ports: StdioPorts,
}

/// What a sandbox is made of.
#[derive(Debug)]
pub struct Parts {
    /// The link to init and to the launcher.
    pub supervisor: Rc<Supervisor>,
    /// Connections for raw streams.
    pub raw: Rc<Waiting>,
    /// Tells of devices that come.
    pub hotplug: Rc<Hotplug>,
    /// Describes devices that containers name.
    pub cdi: cdi::Registry,
    /// How long an image may take to be unpacked (feature `image-pull`).
    pub image_patience: Duration,
    /// Where the journal and the containers' own files are.
    pub state_dir: PathBuf,
    /// The size of output pipes; `None` leaves the kernel's.
    pub pipe_size: Option<u32>,
    /// Where it tells what it does.
    pub log: slog::Logger,
    /// Unseals secrets and pulls images.
    #[cfg(feature = "cdh")]
    pub hub: crate::cdh::Hub,
    /// What of the memory agent is on from the boot.
    pub mem_agent: MemAgent,
    /// Told the id of the sandbox when there is one, and an empty one when it is gone.
    pub named: Log,
}

/// Whether there is a sandbox. Containers do not need one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Absent,
    Present,
    Destroying,
}

/// What every method of this folder works on.
#[derive(Debug)]
struct Core {
    log: slog::Logger,
    named: Log,
    supervisor: Rc<Supervisor>,
    raw: Rc<Waiting>,
    peekers: Arc<Peekers>,
    pipe_size: Option<u32>,
    journal: Journal,
    /// The last time it was to be written.
    journal_fails: Cell<bool>,
    hierarchies: Hierarchies,
    hotplug: Rc<Hotplug>,
    cdi: cdi::Registry,
    #[cfg(feature = "cdh")]
    hub: crate::cdh::Hub,
    storages: Storages,
    exits: Exits,
    oom: OomQueue,
    memory: MemoryAgent,
    moved: Moved,
    last_key: Cell<u64>,
    phase: Cell<Phase>,
    sandbox: RefCell<Option<SandboxRecord>>,
    shared: RefCell<Option<Shared>>,
    table: RefCell<BTreeMap<String, Rc<Container>>>,
}

impl Core {
    fn container(&self, id: &str) -> Result<Rc<Container>> {
        let found = self.table.borrow().get(id).cloned();
        found.ok_or_else(|| Error::UnknownContainer { id: id.to_owned() })
    }

    fn is_in_table(&self, container: &Container) -> bool {
        self.table.borrow().get(&container.id).is_some_and(|found| std::ptr::eq(Rc::as_ptr(found), container))
    }

    /// Writes down what `container` is now, unless it is gone: its id may already be another's.
    fn record(&self, container: &Container) -> Result<()> {
        if !self.is_in_table(container) {
            return Ok(());
        }
        let written = self.journal.write_container(container);
        self.journal_fails.set(written.is_err());
        written.map_err(failed_to(|| format!("write the journal of container {:?}", container.id))).inspect_err(
            |error| slog::error!(self.log, "journal not written"; "container" => &container.id, "error" => %error),
        )
    }

    fn refuse_while_destroying(&self) -> Result<()> {
        match self.phase.get() {
            Phase::Destroying => Err(Error::Sandbox("being destroyed")),
            Phase::Absent | Phase::Present => Ok(()),
        }
    }
}

/// Runs what may block on the pool.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    crate::task::blocking(work).await.map_err(failed_to(|| "finish work on the pool".to_owned())).flatten()
}

/// All containers of this guest. Single-threaded and shared by `Rc`: every method takes `&self`, and no borrow
/// is held over an await.
#[derive(Debug)]
pub struct Sandbox {
    core: Rc<Core>,
}

impl Sandbox {
    /// An empty sandbox. [`Sandbox::recover`] and then [`Sandbox::dispatch_exits`] bring it to life.
    pub fn new(parts: Parts) -> Result<Self> {
        #[cfg(feature = "cdh")]
        let hub = parts.hub;
        #[cfg(feature = "image-pull")]
        let image_patience = parts.image_patience;
        let Parts { supervisor, raw, hotplug, cdi, state_dir, pipe_size, log, mem_agent, named, .. } = parts;
        let journal = Journal::open(&state_dir)
            .map_err(failed_to(|| format!("make the state directory {}", state_dir.display())))?;
        let peekers = Peekers::new().map_err(failed_to(|| "make the scratch pipe".to_owned()))?;
        let hierarchies = Hierarchies::detect().unwrap_or_else(|error| {
            slog::error!(log, "containers get no cgroups"; "error" => %error);
            Hierarchies::default()
        });
        let storages = Storages::new(Rc::clone(&hotplug), &state_dir, log.clone())?;
        #[cfg(feature = "image-pull")]
        storages.set_image_patience(image_patience);
        let core = Core {
            log,
            named,
            supervisor,
            raw,
            peekers: Arc::new(peekers),
            pipe_size,
            journal,
            journal_fails: Cell::new(false),
            hierarchies,
            hotplug,
            cdi,
            #[cfg(feature = "cdh")]
            hub,
            storages,
            exits: Exits::default(),
            oom: OomQueue::default(),
            memory: MemoryAgent::new(mem_agent),
            moved: Moved::default(),
            last_key: Cell::new(0),
            phase: Cell::new(Phase::Absent),
            sandbox: RefCell::new(None),
            shared: RefCell::new(None),
            table: RefCell::default(),
        };
        Ok(Self { core: Rc::new(core) })
    }

    /// Takes over what earlier workers left: their journal, and the descriptors init held for them.
    pub async fn recover(&self, stored: HashMap<Key, OwnedFd>) -> Result<()> {
        self.core.start_memory_agent().await;
        self.core.recover(stored).await
    }

    /// Brings exits to their processes until the link to init breaks; answers how it broke.
    pub async fn dispatch_exits(&self) -> io::Error {
        Rc::clone(&self.core).dispatch_exits().await
    }

    /// What waits for devices, which calls that need no sandbox do too.
    pub fn hotplug(&self) -> Rc<Hotplug> {
        Rc::clone(&self.core.hotplug)
    }

    /// Sets the sandbox up: modules, namespaces, DNS.
    pub async fn create_sandbox(&self, request: SandboxRequest) -> Result<()> {
        self.core.create_sandbox(request).await
    }

    /// Removes every container and what they shared. The caller then has the machine ended.
    pub async fn destroy_sandbox(&self) -> Result<()> {
        self.core.destroy_sandbox().await
    }

    /// Creates a container up to, not including, its program.
    pub async fn create_container(&self, request: CreateRequest) -> Result<()> {
        self.core.create_container(request).await
    }

    /// Runs a created container's program; returns when execve has succeeded or failed.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        self.core.start_container(id).await
    }

    /// Kills what is left of a container, waits for it, and releases everything it had.
    pub async fn remove_container(&self, id: &str, timeout: Option<std::time::Duration>) -> Result<()> {
        self.core.remove_container(id, timeout).await
    }

    /// Adds a process to a running container; returns when execve has succeeded or failed.
    pub async fn exec_process(&self, request: ExecRequest) -> Result<()> {
        self.core.exec_process(request).await
    }

    /// Changes a container's limits.
    pub async fn update_container(&self, id: &str, resources: Option<LinuxResources>) -> Result<()> {
        self.core.update_container(id, resources).await
    }

    /// Freezes a running container.
    pub async fn pause_container(&self, id: &str) -> Result<()> {
        self.core.pause_container(id).await
    }

    /// Lets a paused container go on.
    pub async fn resume_container(&self, id: &str) -> Result<()> {
        self.core.resume_container(id).await
    }

    /// What a container has used.
    pub async fn stats_container(&self, id: &str) -> Result<ContainerStats> {
        self.core.stats_container(id).await
    }

    /// The head of a container's termination message.
    pub async fn termination_log(&self, id: &str) -> Result<String> {
        self.core.termination_log(id).await
    }

    /// Waits for an OOM kill that nobody was told of.
    pub async fn next_oom_event(&self) -> Result<OomEvent> {
        self.core.next_oom_event().await
    }

    /// Changes how cold memory is taken back from containers.
    pub async fn set_reclaim(&self, change: impl Fn(Reclaim) -> Reclaim) -> guest::Result<()> {
        self.core.set_reclaim(change).await
    }

    /// Changes how free memory is put together.
    pub async fn set_compact(&self, change: impl Fn(Compact) -> Compact) -> guest::Result<()> {
        self.core.set_compact(change).await
    }

    /// What keeps it from serving, if anything does.
    pub fn ailment(&self) -> Option<&'static str> {
        self.core.ailment()
    }

    /// What there is, in numbers.
    pub fn census(&self) -> Census {
        self.core.census()
    }

    /// The processes the agent consists of, as far as the link to init tells.
    pub fn roles(&self) -> Roles {
        self.core.roles()
    }

    /// Signals one process, or with SIGKILL and no exec id every process of the container.
    pub async fn signal_process(&self, id: &str, exec_id: &str, signal: u32) -> Result<()> {
        self.core.signal_process(id, exec_id, signal).await
    }

    /// How the process ended: its exit code, or 128 + signal. Waits for it.
    pub async fn wait_process(&self, id: &str, exec_id: &str) -> Result<i32> {
        self.core.wait_process(id, exec_id).await
    }

    /// Writes all of `data` to the process's standard input; an empty slice closes it.
    pub async fn write_stdin(&self, id: &str, exec_id: &str, data: Vec<u8>) -> Result<u32> {
        self.core.write_stdin(id, exec_id, data).await
    }

    /// Waits for output and looks at up to `len` bytes of it (at most 1 MiB); empty at the end of the stream.
    pub async fn read_output(&self, id: &str, exec_id: &str, from: Output, len: u32) -> Result<Chunk> {
        let (data, seen) = self.core.read_output(id, exec_id, from, len).await?;
        Ok(Chunk { data, seen })
    }

    /// Ends the process's standard input; on a terminal, types ^D.
    pub async fn close_stdin(&self, id: &str, exec_id: &str) -> Result<()> {
        self.core.close_stdin(id, exec_id).await
    }

    /// Brings CPUs online until `cpus` are (0 leaves them alone), and memory; see OnlineCPUMem.
    pub async fn online_cpus_and_memory(&self, cpus: usize, memory: bool, wait: bool) -> Result<()> {
        self.core.online_cpus_and_memory(cpus, memory, wait).await
    }

    /// Tells the kernel of memory blocks at these physical addresses.
    pub async fn probe_memory(&self, addresses: Vec<u64>) -> Result<()> {
        self.core.probe_memory(addresses).await
    }

    /// Bytes and inodes of the volume at `path`.
    pub async fn volume_stats(&self, path: PathBuf) -> Result<(Usage, Usage)> {
        self.core.volume_stats(path).await
    }

    /// Grows the file system mounted at `path`; 0 means to all of its device.
    pub async fn resize_volume(&self, path: PathBuf, size: u64) -> Result<()> {
        self.core.resize_volume(path, size).await
    }

    /// Remounts volumes of memory with other options.
    pub async fn update_ephemeral_mounts(&self, storages: Vec<Storage>) -> Result<()> {
        self.core.update_ephemeral_mounts(storages).await
    }

    /// Has the host's virtio-fs daemon forget inodes that are gone.
    pub async fn touch_shared_mounts(&self) -> Result<()> {
        self.core.touch_shared_mounts().await
    }

    /// Changes the size of the process's terminal.
    pub async fn resize_terminal(&self, id: &str, exec_id: &str, rows: u16, columns: u16) -> Result<()> {
        self.core.resize_terminal(id, exec_id, rows, columns)
    }
}
