//! Which namespaces a container gets, and which settings depend on having them.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxNamespaceType, Spec};

use super::CompileError;
use crate::{
    plan::{IdMap, Join, Namespaces, slot},
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
    if namespaces.create & NamespaceKind::Mount.flag() == 0 {
        return Err(CompileError::NeedsNamespace { field: "root".into(), kind: NamespaceKind::Mount.name() });
    }
    map_ids(&mut namespaces, linux)?;
    name_host(&mut namespaces, spec)?;
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
    if matches!(kind, NamespaceKind::Mount | NamespaceKind::User) {
        return Err(CompileError::Unsupported {
            field: format!("a path for the {} namespace", kind.name()),
            advice: "a container gets its own; run a process in an existing container by exec",
        });
    }
    // A pidfd knows no such request; whether it is one, setns finds out.
    if nsfs::kind(fd.as_fd()).is_ok_and(|found| found != kind.flag()) {
        return Err(CompileError::NamespaceKind { kind: kind.name() });
    }
    let fd = slot(fds, fd);
    match kind {
        NamespaceKind::Pid => namespaces.pid = Some(fd),
        _ => namespaces.joins.push(Join { fd, kinds: kind.flag() }),
    }
    Ok(())
}

fn open(kind: NamespaceKind, path: &PathBuf) -> Result<OwnedFd, CompileError> {
    let file = File::open(path).map_err(|source| CompileError::Namespace {
        kind: kind.name(),
        path: path.clone(),
        source,
    })?;
    match nsfs::kind(file.as_fd()) {
        Ok(found) if found == kind.flag() => Ok(file.into()),
        _ => Err(CompileError::NamespaceKind { kind: kind.name() }),
    }
}

fn map_ids(namespaces: &mut Namespaces, linux: Option<&Linux>) -> Result<(), CompileError> {
    let map = |list: Option<&Vec<LinuxIdMapping>>| -> Vec<IdMap> {
        let range = |id: &LinuxIdMapping| IdMap {
            inside: id.container_id(),
            outside: id.host_id(),
            count: id.size(),
        };
        list.into_iter().flatten().map(range).collect()
    };
    namespaces.uid_map = map(linux.and_then(|linux| linux.uid_mappings().as_ref()));
    namespaces.gid_map = map(linux.and_then(|linux| linux.gid_mappings().as_ref()));
    let has_user = has(namespaces, NamespaceKind::User);
    match (has_user, namespaces.uid_map.is_empty(), namespaces.gid_map.is_empty()) {
        (true, true, _) => Err(CompileError::Missing("linux.uidMappings, which a user namespace needs")),
        (true, _, true) => Err(CompileError::Missing("linux.gidMappings, which a user namespace needs")),
        (true, ..) | (false, true, true) => Ok(()),
        (false, ..) => require(namespaces, NamespaceKind::User, "linux.uidMappings or linux.gidMappings"),
    }
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
