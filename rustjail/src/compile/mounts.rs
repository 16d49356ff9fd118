//! The mounts of a container.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, open},
    sys::{
        stat::{Mode, fstat},
        statfs::{PROC_SUPER_MAGIC, fstatfs},
    },
};
use oci_spec::runtime::{Mount as Requested, Spec};

use super::{CompileError, NamespaceKind, cgroups, namespaces, options::Options, paths};
use crate::{
    plan::{Attributes, Bind, FileSystem, FsOption, Mount, MountKind, Namespaces, slot},
    sys::mount::clone_tree,
};

/// What lxcfs and its like put over single files of procfs. Anything else there would lie to the processes
/// that trust procfs, or take a path out of reach that has to be masked.
const ALLOWED_IN_PROC: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/slabinfo",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/crypto/fips_enabled",
];

/// File systems that are no less the kernel's own when a mount of them is read-only: the mount is, not they.
const VIRTUAL: [&str; 9] =
    ["proc", "sysfs", "tmpfs", "ramfs", "devpts", "devtmpfs", "mqueue", "securityfs", "bpf"];

/// All of the spec's, in its order, their sources opened.
pub(super) fn of_container(
    spec: &Spec,
    bundle: &Path,
    has: &Namespaces,
    fds: &mut Vec<OwnedFd>,
) -> Result<Vec<Mount>, CompileError> {
    spec.mounts().iter().flatten().map(|requested| convert(requested, bundle, has, fds)).collect()
}

fn convert(
    requested: &Requested,
    bundle: &Path,
    has: &Namespaces,
    fds: &mut Vec<OwnedFd>,
) -> Result<Mount, CompileError> {
    let target = paths::in_container("mounts destination", requested.destination())?;
    let refuse = |problem| CompileError::Mount { destination: target.clone(), problem };
    if requested.uid_mappings().is_some() || requested.gid_mappings().is_some() {
        return Err(refuse("has id mappings, which are not supported"));
    }
    if target == Path::new("/") {
        return Err(refuse("is the root file system, which root.path names"));
    }
    let words = requested.options().as_deref().unwrap_or_default();
    let options = Options::parse(words, &target)?;
    let kind = requested.typ().as_deref().unwrap_or_default();
    let is_bind = options.bind.is_some() || kind == "bind";
    if target.starts_with("/proc") && target != Path::new("/proc") {
        let allowed = is_bind && ALLOWED_IN_PROC.iter().any(|path| Path::new(path) == target);
        if !allowed {
            return Err(refuse("nothing may be mounted there, within procfs"));
        }
    }
    match kind {
        _ if is_bind => bind(requested, target, options, bundle, fds),
        "" | "none" => Err(refuse("has neither a type nor the option bind")),
        "cgroup" | "cgroup2" => {
            let namespaced = namespaces::has(has, NamespaceKind::Cgroup);
            let view = cgroups::view(kind == "cgroup2", namespaced)?;
            Ok(Mount {
                target,
                kind: MountKind::Cgroup(view),
                attributes: options.attributes,
                recursive: Attributes::default(),
            })
        }
        _ if target == Path::new("/proc") && kind != "proc" => Err(refuse("has to be of the type proc")),
        _ => Ok(file_system(kind, requested.source().as_deref(), target, options)),
    }
}

fn file_system(kind: &str, source: Option<&Path>, target: PathBuf, options: Options) -> Mount {
    let mut data = options.data;
    if options.attributes.set & libc::MOUNT_ATTR_RDONLY != 0 && !VIRTUAL.contains(&kind) {
        // A read-only mount does not keep a file system from writing to its device.
        data.push(FsOption::Flag("ro".into()));
    }
    let source = source.map(|path| path.to_string_lossy().into_owned()).filter(|text| !text.is_empty());
    let kind = FileSystem { kind: kind.to_owned(), source, options: data };
    Mount {
        target,
        kind: MountKind::FileSystem(kind),
        attributes: options.attributes,
        recursive: options.recursive,
    }
}

fn bind(
    requested: &Requested,
    target: PathBuf,
    options: Options,
    bundle: &Path,
    fds: &mut Vec<OwnedFd>,
) -> Result<Mount, CompileError> {
    if let Some(FsOption::Flag(option) | FsOption::Value(option, _)) = options.data.first() {
        return Err(CompileError::MountOption {
            destination: target,
            option: option.clone(),
            problem: "is for a new file system, not for a bind mount",
        });
    }
    let source = requested.source().as_deref().filter(|path| *path != OsStr::new(""));
    let Some(source) = source else {
        return Err(CompileError::Mount { destination: target, problem: "has no source to bind" });
    };
    let source_path = bundle.join(source);
    let recursive = options.bind == Some(true);
    let (tree, found) = open_source(&source_path, recursive).map_err(|error| CompileError::MountSource {
        destination: target.clone(),
        source_path: source_path.clone(),
        error,
    })?;
    if target == Path::new("/proc") && !found.procfs {
        return Err(CompileError::Mount { destination: target, problem: "has to be a procfs" });
    }
    let mut all = options.recursive;
    if all.propagation == 0 && options.attributes.propagation == 0 {
        // The copy would otherwise hand mounts made in the container back to the host.
        all.propagation = libc::MS_SLAVE;
    }
    let kind = MountKind::Bind(Bind { tree: slot(fds, tree), directory: found.directory });
    Ok(Mount { target, kind, attributes: options.attributes, recursive: all })
}

struct Found {
    directory: bool,
    procfs: bool,
}

/// A detached copy of what is at `path`, which is looked up once.
fn open_source(path: &Path, recursive: bool) -> std::io::Result<(OwnedFd, Found)> {
    let place = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let found = Found {
        directory: fstat(&place)?.st_mode & libc::S_IFMT == libc::S_IFDIR,
        procfs: fstatfs(&place)?.filesystem_type() == PROC_SUPER_MAGIC,
    };
    Ok((clone_tree(place.as_fd(), recursive)?, found))
}
