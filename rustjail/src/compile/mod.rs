//! From a runtime-spec document to a plan: everything that can be wrong about a request is found here.
//!
//! The compiler runs in the agent, where time and privileges are. It opens what the container will be made
//! of (the root file system and the sources of bind mounts, as detached copies of mounts), so the child looks
//! no path of the host up and a source that is missing fails before anything exists. What the configuration
//! asks for and the runtime does not do is an error, never a silent omission.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;
use oci_spec::runtime::{Process, Spec};

use crate::{
    cgroup,
    launch::Launch,
    plan::{
        Gate, Hooks, Join, MAX_SLOTS, MountKind, Namespaces, Placement, Plan, Process as PlanProcess, Root,
        Slot, Stdio as PlanStdio, slot,
    },
    resctrl,
    sys::mount::clone_tree,
};
use sources::Sources;

mod cgroups;
mod devices;
mod error;
mod hooks;
mod idmap;
mod ids;
mod labels;
mod mounts;
mod namespaces;
mod netdevices;
mod options;
mod paths;
mod process;
mod ranges;
mod scheduling;
mod sources;
mod sysctl;
mod version;

pub use error::CompileError;
pub use namespaces::NamespaceKind;
pub use options::mount_options;

/// Where a process's standard streams go.
#[derive(Debug)]
pub enum Stdio {
    /// The child's ends of three pipes (or any descriptors).
    Streams {
        /// Read by the process as descriptor 0.
        stdin: OwnedFd,
        /// Written as descriptor 1.
        stdout: OwnedFd,
        /// Written as descriptor 2.
        stderr: OwnedFd,
    },
    /// A pty of the container's own devpts; its master comes back as `Report::Console`.
    Terminal,
}

/// A container to be created.
#[derive(Debug)]
pub struct ContainerRequest<'a> {
    /// What hooks are told the container is called.
    pub id: &'a str,
    /// The runtime-spec configuration.
    pub spec: &'a Spec,
    /// What relative paths of the spec are relative to.
    pub bundle: &'a Path,
    /// Directories whose contents others may change, such as volumes: below one of these, neither the root file
    /// system nor the source of a bind mount is found by a link that leads out of it. Absolute, free of links.
    pub confined: &'a [PathBuf],
    /// The init's standard streams.
    pub stdio: Stdio,
    /// Namespaces to join, by a descriptor of each or the pidfd of a process in it; each takes the place of
    /// what the spec says of its kind.
    pub join: Vec<(NamespaceKind, OwnedFd)>,
    /// Where its processes are placed; `None` leaves them in the caller's cgroup.
    pub placement: Option<cgroup::Placement>,
    /// The group that `linux.intelRdt` asks for, if it does.
    pub resctrl: Option<&'a resctrl::Group>,
    /// The child's end of `sync::pair`.
    pub sync: OwnedFd,
}

/// A process to be added to a running container.
#[derive(Debug)]
pub struct ExecRequest<'a> {
    /// The process to run.
    pub process: &'a Process,
    /// The container's configuration: its namespaces and seccomp profile, and defaults for what `process` omits.
    pub spec: &'a Spec,
    /// The container's init, as a pidfd.
    pub init: BorrowedFd<'a>,
    /// The process's standard streams.
    pub stdio: Stdio,
    /// Where the process is placed.
    pub placement: Option<cgroup::Placement>,
    /// The container's group, if `linux.intelRdt` asks for one.
    pub resctrl: Option<&'a resctrl::Group>,
    /// The child's end of `sync::pair`.
    pub sync: OwnedFd,
}

/// The launch of a container's init.
pub fn container(request: ContainerRequest<'_>) -> Result<Launch, CompileError> {
    let spec = request.spec;
    version::check(spec.version())?;
    let hooks = hooks::of_container(spec, request.id, request.bundle)?;
    let mut fds = Vec::new();
    let requested = spec.process().as_ref().ok_or(CompileError::Missing("process"))?;
    let process = process::convert(requested, None, spec, request.stdio, &mut fds)?;
    let namespaces = namespaces::of_container(spec, request.join, &mut fds)?;
    let console = matches!(process.stdio, PlanStdio::Terminal(_));
    process::belongs(&process, &namespaces)?;
    let sources = Sources { bundle: request.bundle, confined: request.confined };
    let root = root(spec, sources, &namespaces, console, hooks, &mut fds)?;
    let placement = place(spec, request.placement, request.resctrl, &mut fds)?;
    let sync = slot(&mut fds, request.sync);
    finish(plan(namespaces, placement, Some(root), process, sync), fds)
}

/// The launch of one more process in a container.
pub fn exec(request: ExecRequest<'_>) -> Result<Launch, CompileError> {
    let spec = request.spec;
    let mut fds = Vec::new();
    let defaults = spec.process().as_ref();
    let process = process::convert(request.process, defaults, spec, request.stdio, &mut fds)?;
    let init = slot(&mut fds, request.init.try_clone_to_owned().map_err(CompileError::Descriptor)?);
    let namespaces =
        Namespaces { joins: vec![join_init(spec, init)], pid: Some(init), ..Namespaces::default() };
    let placement = place(spec, request.placement, request.resctrl, &mut fds)?;
    let sync = slot(&mut fds, request.sync);
    finish(plan(namespaces, placement, None, process, sync), fds)
}

/// What the caller may still change is at its usual value.
fn plan(
    namespaces: Namespaces,
    placement: Placement,
    root: Option<Root>,
    process: PlanProcess,
    sync: Slot,
) -> Plan {
    let gate = if root.is_some() { Gate::Start } else { Gate::Open };
    Plan {
        namespaces,
        placement,
        root,
        process,
        gate,
        sync,
        preserved_fds: 0,
        keep_keyring: false,
        binary: None,
    }
}

/// Entering a namespace one is in already changes nothing, so what the init was given besides its spec is
/// found too. Only a user namespace cannot be entered twice, and a time namespace need not exist.
fn join_init(spec: &Spec, init: Slot) -> Join {
    let always = [
        NamespaceKind::Mount,
        NamespaceKind::Network,
        NamespaceKind::Ipc,
        NamespaceKind::Uts,
        NamespaceKind::Cgroup,
    ];
    let listed = spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    let when_listed = listed
        .into_iter()
        .flatten()
        .map(|namespace| NamespaceKind::from(namespace.typ()))
        .filter(|kind| matches!(kind, NamespaceKind::User | NamespaceKind::Time));
    let kinds = always.into_iter().chain(when_listed).fold(0, |kinds, kind| kinds | kind.flag());
    Join { fd: init, kinds }
}

fn root(
    spec: &Spec,
    sources: Sources<'_>,
    has: &Namespaces,
    console: bool,
    hooks: Hooks,
    fds: &mut Vec<OwnedFd>,
) -> Result<Root, CompileError> {
    let requested = spec.root().as_ref().ok_or(CompileError::Missing("root"))?;
    let (tree, place) = open_root(sources, &sources.bundle.join(requested.path()))?;
    let tree = slot(fds, tree);
    // Hooks of that time know no other name for the container's tree than its path.
    let place = (hooks.runtime || !hooks.create_container.is_empty()).then_some(place);
    let mut mounts = mounts::of_container(spec, sources, has, fds)?;
    let dev = mounts.iter_mut().rev().find(|mount| mount.target == Path::new("/dev"));
    let host_dev = dev.as_ref().is_some_and(|mount| matches!(mount.kind, MountKind::Bind(_)));
    // Devices are yet to be made in it.
    let readonly_dev = dev.filter(|_| !host_dev).is_some_and(|mount| {
        let asked = mount.attributes.set & libc::MOUNT_ATTR_RDONLY != 0;
        mount.attributes.set &= !libc::MOUNT_ATTR_RDONLY;
        asked
    });
    let linux = spec.linux().as_ref();
    let devices = linux.and_then(|linux| linux.devices().as_ref());
    let sysctl = linux.and_then(|linux| linux.sysctl().as_ref());
    let masked = linux.and_then(|linux| linux.masked_paths().as_ref());
    let readonly_paths = linux.and_then(|linux| linux.readonly_paths().as_ref());
    let propagation =
        linux.and_then(|linux| linux.rootfs_propagation().as_ref()).filter(|word| !word.is_empty());
    Ok(Root {
        tree,
        place,
        hooks,
        mounts,
        devices: if host_dev { Vec::new() } else { devices::of_container(devices)? },
        dev_links: !host_dev,
        console: console && !host_dev,
        sysctls: sysctl::settings(sysctl, has)?,
        masked: paths::absolute_list("linux.maskedPaths", masked)?,
        readonly_paths: paths::absolute_list("linux.readonlyPaths", readonly_paths)?,
        readonly: requested.readonly().unwrap_or(false),
        no_pivot: false,
        readonly_dev,
        propagation: propagation
            .map(|word| {
                options::propagation(word).ok_or_else(|| {
                    CompileError::invalid(
                        "linux.rootfsPropagation",
                        word,
                        "is not shared, slave, private or unbindable",
                    )
                })
            })
            .transpose()?,
    })
}

/// A detached copy of the root file system, and where that is. Its path is looked up once, links and all
/// (CVE-2025-54867).
fn open_root(sources: Sources<'_>, path: &Path) -> Result<(OwnedFd, PathBuf), CompileError> {
    if !path.is_absolute() {
        return Err(CompileError::invalid("root.path", path.display(), "is relative, and so is the bundle"));
    }
    let open = || -> io::Result<_> {
        let place = sources.open(path, OFlag::O_DIRECTORY)?;
        let found = fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
        Ok((clone_tree(place.as_fd(), true)?, found))
    };
    open().map_err(|source| CompileError::Root { path: path.to_owned(), source })
}

fn place(
    spec: &Spec,
    placement: Option<cgroup::Placement>,
    resctrl: Option<&resctrl::Group>,
    fds: &mut Vec<OwnedFd>,
) -> Result<Placement, CompileError> {
    let placement = placement.unwrap_or_default();
    let into = placement.into.map(|fd| slot(fds, fd));
    let mut tasks: Vec<Slot> = placement.tasks.into_iter().map(|fd| slot(fds, fd)).collect();
    let wanted = spec.linux().as_ref().is_some_and(|linux| linux.intel_rdt().is_some());
    match resctrl {
        Some(group) => tasks.push(slot(fds, group.tasks()?)),
        None if wanted => {
            let advice = "remove it from the configuration, or give the container a resctrl group";
            return Err(CompileError::Unsupported { field: "linux.intelRdt".into(), advice });
        }
        None => {}
    }
    Ok(Placement { into, tasks, more: false })
}

fn finish(plan: Plan, fds: Vec<OwnedFd>) -> Result<Launch, CompileError> {
    if fds.len() > MAX_SLOTS {
        return Err(CompileError::TooManyDescriptors { needed: fds.len() });
    }
    Ok(Launch { plan, fds })
}
