//! Which namespaces a container gets, and which settings depend on having them.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{
    fcntl::{self, OFlag},
    sys::{
        stat::{Mode, fstat, stat},
        statfs::{NSFS_MAGIC, fstatfs},
    },
};
use oci_spec::runtime::{Linux, LinuxNamespaceType, Spec};

use super::{CompileError, ids, netdevices};
use crate::{
    plan::{Join, Namespaces, TimeOffset, slot},
    sys::nsfs,
};

/// The kinds of namespace a container may create or join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum NamespaceKind {
    /// Mount points.
    Mount,
    /// Process ids.
    Pid,
    /// Network devices, stacks, ports.
    Network,
    /// System V IPC, POSIX message queues.
    Ipc,
    /// Hostname and domain name.
    Uts,
    /// User and group ids.
    User,
    /// Cgroup root directory.
    Cgroup,
    /// Boot and monotonic clocks.
    Time,
}

impl NamespaceKind {
    /// Its CLONE_NEW* bit.
    pub fn flag(self) -> u64 {
        let bit = match self {
            Self::Mount => libc::CLONE_NEWNS,
            Self::Pid => libc::CLONE_NEWPID,
            Self::Network => libc::CLONE_NEWNET,
            Self::Ipc => libc::CLONE_NEWIPC,
            Self::Uts => libc::CLONE_NEWUTS,
            Self::User => libc::CLONE_NEWUSER,
            Self::Cgroup => libc::CLONE_NEWCGROUP,
            Self::Time => libc::CLONE_NEWTIME,
        };
        bit as u64
    }

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount",
            Self::Pid => "pid",
            Self::Network => "network",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
            Self::User => "user",
            Self::Cgroup => "cgroup",
            Self::Time => "time",
        }
    }

    /// Its name in `/proc/PID/ns`.
    fn file(self) -> &'static str {
        match self {
            Self::Mount => "mnt",
            Self::Network => "net",
            other => other.name(),
        }
    }
}

impl From<LinuxNamespaceType> for NamespaceKind {
    fn from(kind: LinuxNamespaceType) -> Self {
        match kind {
            LinuxNamespaceType::Mount => Self::Mount,
            LinuxNamespaceType::Pid => Self::Pid,
            LinuxNamespaceType::Network => Self::Network,
            LinuxNamespaceType::Ipc => Self::Ipc,
            LinuxNamespaceType::Uts => Self::Uts,
            LinuxNamespaceType::User => Self::User,
            LinuxNamespaceType::Cgroup => Self::Cgroup,
            LinuxNamespaceType::Time => Self::Time,
        }
    }
}

/// The kinds a container has for itself or joins, whichever.
pub(super) fn has(namespaces: &Namespaces, kind: NamespaceKind) -> bool {
    let flag = kind.flag();
    namespaces.create & flag != 0
        || namespaces.joins.iter().any(|join| join.kinds & flag != 0)
        || (kind == NamespaceKind::Pid && namespaces.pid.is_some())
}

/// An error unless the container has a namespace of its own (or joined) of `kind`.
pub(super) fn require(
    namespaces: &Namespaces,
    kind: NamespaceKind,
    field: impl Into<String>,
) -> Result<(), CompileError> {
    if has(namespaces, kind) {
        return Ok(());
    }
    Err(CompileError::NeedsNamespace { field: field.into(), kind: kind.name() })
}

/// The namespaces of a new container: those of the spec, of which `join` takes the place by kind.
pub(super) fn of_container(
    spec: &Spec,
    join: Vec<(NamespaceKind, OwnedFd)>,
    fds: &mut Vec<OwnedFd>,
) -> Result<Namespaces, CompileError> {
    let mut namespaces = Namespaces::default();
    let given: Vec<NamespaceKind> = join.iter().map(|(kind, _)| *kind).collect();
    for (kind, fd) in join {
        enter(&mut namespaces, kind, fd, fds)?;
    }
    let linux = spec.linux().as_ref();
    for namespace in linux.and_then(|linux| linux.namespaces().as_ref()).into_iter().flatten() {
        let kind = NamespaceKind::from(namespace.typ());
        if given.contains(&kind) {
            continue;
        }
        if has(&namespaces, kind) {
            return Err(CompileError::invalid("linux.namespaces", kind.name(), "is listed twice"));
        }
        match namespace.path().as_ref().filter(|path| !path.as_os_str().is_empty()) {
            None => namespaces.create |= kind.flag(),
            Some(path) => enter(&mut namespaces, kind, open(kind, path)?, fds)?,
        }
    }
    if !has(&namespaces, NamespaceKind::Mount) {
        return Err(CompileError::NeedsNamespace { field: "root".into(), kind: NamespaceKind::Mount.name() });
    }
    map_ids(&mut namespaces, linux)?;
    name_host(&mut namespaces, spec)?;
    set_clocks(&mut namespaces, linux)?;
    namespaces.net_devices = netdevices::of_container(&namespaces, linux)?;
    Ok(namespaces)
}

fn enter(
    namespaces: &mut Namespaces,
    kind: NamespaceKind,
    fd: OwnedFd,
    fds: &mut Vec<OwnedFd>,
) -> Result<(), CompileError> {
    if has(namespaces, kind) {
        return Err(CompileError::invalid("the list of namespaces to join", kind.name(), "has it twice"));
    }
    // A pidfd knows no such request; whether it is one, setns finds out.
    if nsfs::kind(fd.as_fd()).is_ok_and(|found| found != kind.flag()) {
        return Err(CompileError::NamespaceKind { kind: kind.name() });
    }
    if is_own(kind, fd.as_fd()) {
        // Shared with the machine, as if it were not listed: nothing of it is the container's to set.
        return Ok(());
    }
    let fd = slot(fds, fd);
    match kind {
        NamespaceKind::Pid => namespaces.pid = Some(fd),
        _ => namespaces.joins.push(Join { fd, kinds: kind.flag() }),
    }
    Ok(())
}

/// Whether `fd` is the namespace this process is in.
fn is_own(kind: NamespaceKind, fd: BorrowedFd<'_>) -> bool {
    let own = stat(format!("/proc/self/ns/{}", kind.file()).as_str());
    matches!((fstat(fd), own), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// The namespace at `path`, which is looked at before it is opened: that may act on, or wait for, what else is there.
fn open(kind: NamespaceKind, path: &Path) -> Result<OwnedFd, CompileError> {
    let open = || -> io::Result<Option<OwnedFd>> {
        let place = fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        if fstatfs(&place)?.filesystem_type() != NSFS_MAGIC {
            return Ok(None);
        }
        Ok(Some(File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))?.into()))
    };
    let found = open().map_err(|source| CompileError::Namespace {
        kind: kind.name(),
        path: path.to_owned(),
        source,
    })?;
    match found.map(|file| (nsfs::kind(file.as_fd()), file)) {
        Some((Ok(found), file)) if found == kind.flag() => Ok(file),
        _ => Err(CompileError::NamespaceKind { kind: kind.name() }),
    }
}

fn map_ids(namespaces: &mut Namespaces, linux: Option<&Linux>) -> Result<(), CompileError> {
    let uids = ids::map("linux.uidMappings", linux.and_then(|linux| linux.uid_mappings().as_ref()))?;
    let gids = ids::map("linux.gidMappings", linux.and_then(|linux| linux.gid_mappings().as_ref()))?;
    let user = NamespaceKind::User;
    if namespaces.create & user.flag() == 0 {
        // One that is joined has its maps; engines repeat them.
        return match has(namespaces, user) || (uids.is_empty() && gids.is_empty()) {
            true => Ok(()),
            false => require(namespaces, user, "linux.uidMappings or linux.gidMappings"),
        };
    }
    for (map, missing, rootless) in [
        (
            &uids,
            "linux.uidMappings, which a user namespace needs",
            "linux.uidMappings with user 0, who sets the container up",
        ),
        (
            &gids,
            "linux.gidMappings, which a user namespace needs",
            "linux.gidMappings with group 0, who sets the container up",
        ),
    ] {
        if map.is_empty() {
            return Err(CompileError::Missing(missing));
        }
        if !ids::contains(map, 0) {
            return Err(CompileError::Missing(rootless));
        }
    }
    (namespaces.uid_map, namespaces.gid_map) = (uids, gids);
    Ok(())
}

fn set_clocks(namespaces: &mut Namespaces, linux: Option<&Linux>) -> Result<(), CompileError> {
    let offsets = linux.and_then(|linux| linux.time_offsets().as_ref());
    for (clock, offset) in offsets.into_iter().flatten() {
        if namespaces.create & NamespaceKind::Time.flag() == 0 {
            let (field, kind) = ("linux.timeOffsets".to_owned(), NamespaceKind::Time.name());
            return Err(CompileError::NeedsNamespace { field, kind });
        }
        if !matches!(clock.as_str(), "monotonic" | "boottime") {
            return Err(CompileError::invalid(
                "linux.timeOffsets",
                clock,
                "is not a clock that can be offset: those are monotonic and boottime",
            ));
        }
        let nanoseconds = offset.nanosecs().unwrap_or(0);
        if nanoseconds >= 1_000_000_000 {
            return Err(CompileError::invalid(
                "linux.timeOffsets nanosecs",
                nanoseconds,
                "is a second or more",
            ));
        }
        let seconds = offset.secs().unwrap_or(0);
        namespaces.time_offsets.push(TimeOffset { clock: clock.clone(), seconds, nanoseconds });
    }
    namespaces.time_offsets.sort_by(|a, b| a.clock.cmp(&b.clock));
    Ok(())
}

fn name_host(namespaces: &mut Namespaces, spec: &Spec) -> Result<(), CompileError> {
    let named = |field: &'static str, value: &Option<String>| {
        let Some(value) = value.as_ref().filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        require(namespaces, NamespaceKind::Uts, field)?;
        // __NEW_UTS_LEN of linux/utsname.h. The name ends up in files and prompts as it is.
        if value.len() > 64 || value.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(CompileError::invalid(field, value, "is not a host name of at most 64 bytes"));
        }
        Ok(Some(value.clone()))
    };
    let (hostname, domainname) =
        (named("hostname", spec.hostname())?, named("domainname", spec.domainname())?);
    namespaces.hostname = hostname;
    namespaces.domainname = domainname;
    Ok(())
}
