//! The mounts of a container.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::OFlag,
    sys::{
        stat::fstat,
        statfs::{PROC_SUPER_MAGIC, fstatfs},
    },
};
use oci_spec::runtime::{Mount as Requested, Spec};

use super::{
    CompileError, NamespaceKind, cgroups,
    idmap::{MapOption, Range},
    ids, labels, namespaces,
    options::Options,
    paths,
    sources::Sources,
};
use crate::{
    plan::{Attributes, Bind, FileSystem, FsOption, IdMap, IdMapped, Mount, MountKind, Namespaces, slot},
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
    sources: Sources<'_>,
    has: &Namespaces,
    fds: &mut Vec<OwnedFd>,
) -> Result<Vec<Mount>, CompileError> {
    let label = labels::of_mounts(spec.linux().as_ref().and_then(|linux| linux.mount_label().as_ref()))?;
    let convert = |requested| {
        let mut mount = convert(requested, sources, has, fds)?;
        if let (MountKind::FileSystem(file_system), Some(label)) = (&mut mount.kind, &label) {
            file_system.label(label);
        }
        Ok(mount)
    };
    spec.mounts().iter().flatten().map(convert).collect()
}

impl FileSystem {
    /// Those of the kernel's own have their labels from its policy, and one that is asked for stays.
    fn label(&mut self, label: &FsOption) {
        let own = ["proc", "sysfs", "mqueue", "cgroup", "cgroup2"].contains(&self.kind.as_str());
        let has_one = |option: &FsOption| {
            let (FsOption::Flag(key) | FsOption::Value(key, _)) = option;
            key.ends_with("context")
        };
        if !own && !self.options.iter().any(has_one) {
            self.options.push(label.clone());
        }
    }
}

fn convert(
    requested: &Requested,
    sources: Sources<'_>,
    has: &Namespaces,
    fds: &mut Vec<OwnedFd>,
) -> Result<Mount, CompileError> {
    let target = paths::in_container("mounts destination", requested.destination())?;
    let refuse = |problem| CompileError::Mount { destination: target.clone(), problem };
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
    let maps = requested.uid_mappings().is_some() || requested.gid_mappings().is_some();
    if !is_bind && (maps || options.map.is_some()) {
        return Err(refuse("has mapped ids, which only a bind mount can have"));
    }
    if options.copy_up && (is_bind || kind != "tmpfs") {
        return Err(refuse("has the option tmpcopyup, which only a tmpfs can have"));
    }
    if !is_bind && (options.copy_symlink || options.source_nofollow) {
        return Err(refuse("has the option copy-symlink or src-nofollow, which only a bind mount can have"));
    }
    if options.copy_symlink
        && let Some(link) = link_at(requested, sources.bundle)
    {
        let attributes = Attributes::default();
        return Ok(Mount {
            target,
            kind: MountKind::Link(link),
            nofollow: true,
            attributes,
            recursive: attributes,
        });
    }
    match kind {
        _ if is_bind => bind(requested, target, options, sources, has, fds),
        "" | "none" => Err(refuse("has neither a type nor the option bind")),
        "cgroup" | "cgroup2" => {
            let namespaced = namespaces::has(has, NamespaceKind::Cgroup);
            let view = cgroups::view(kind == "cgroup2", namespaced)?;
            let mut attributes = options.attributes;
            if !namespaced && namespaces::has(has, NamespaceKind::User) {
                // It is the machine's own tree, and who is root inside may own a part of it (CVE-2023-25809).
                attributes.set |= libc::MOUNT_ATTR_RDONLY;
            }
            Ok(Mount {
                target,
                kind: MountKind::Cgroup(view),
                nofollow: options.destination_nofollow,
                attributes,
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
    let kind = FileSystem { kind: kind.to_owned(), source, options: data, copy_up: options.copy_up };
    Mount {
        target,
        kind: MountKind::FileSystem(kind),
        nofollow: options.destination_nofollow,
        attributes: options.attributes,
        recursive: options.recursive,
    }
}

fn bind(
    requested: &Requested,
    target: PathBuf,
    options: Options,
    sources: Sources<'_>,
    has: &Namespaces,
    fds: &mut Vec<OwnedFd>,
) -> Result<Mount, CompileError> {
    let mapped = mapped(requested, &target, options.map.as_ref(), has)?;
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
    let source_path = sources.bundle.join(source);
    let recursive = options.bind == Some(true);
    let opened = open_source(sources, &source_path, recursive, options.source_nofollow);
    let (tree, found) = opened.map_err(|error| CompileError::MountSource {
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
    let kind = MountKind::Bind(Bind { tree: slot(fds, tree), directory: found.directory, mapped });
    let nofollow = options.destination_nofollow;
    Ok(Mount { target, kind, nofollow, attributes: options.attributes, recursive: all })
}

/// Which ids the files are to be shown with: those of the mount's own maps, or those of the container's user
/// namespace.
fn mapped(
    requested: &Requested,
    target: &Path,
    option: Option<&MapOption>,
    has: &Namespaces,
) -> Result<Option<IdMapped>, CompileError> {
    let refuse = |problem| CompileError::Mount { destination: target.to_owned(), problem };
    let recursive = option.is_some_and(|option| option.recursive);
    let uids = ids::map("mounts uidMappings", requested.uid_mappings().as_ref())?;
    let gids = ids::map("mounts gidMappings", requested.gid_mappings().as_ref())?;
    if let Some(option) = option.filter(|option| !option.uids.is_empty()) {
        if !uids.is_empty() || !gids.is_empty() {
            return Err(refuse("has maps of its own, and others in its option idmap"));
        }
        let resolve = |field, ranges: &[Range], map: &[IdMap]| {
            let ranges: Option<Vec<_>> = ranges.iter().map(|range| range.resolve(map)).collect();
            let nobody = "has ids relative to a user namespace in which they are not, or which is not the container's own";
            ids::check(field, ranges.ok_or_else(|| refuse(nobody))?)
        };
        let uids = resolve("mounts option idmap", &option.uids, &has.uid_map)?;
        let gids = resolve("mounts option idmap", &option.gids, &has.gid_map)?;
        return Ok(Some(IdMapped { uids, gids, namespace: None, recursive }));
    }
    match (uids.is_empty(), gids.is_empty(), option) {
        (false, false, _) => Ok(Some(IdMapped { uids, gids, namespace: None, recursive })),
        (true, true, None) => Ok(None),
        (true, true, Some(_)) => {
            let user = NamespaceKind::User;
            let joined = has.joins.iter().find(|join| join.kinds == user.flag()).map(|join| join.fd);
            if joined.is_none() && has.create & user.flag() == 0 {
                return Err(refuse(
                    "has the option idmap, but neither maps of its own nor a user namespace to take them from",
                ));
            }
            let (uids, gids) = (has.uid_map.clone(), has.gid_map.clone());
            Ok(Some(IdMapped { uids, gids, namespace: joined, recursive }))
        }
        _ => Err(refuse("has uidMappings or gidMappings, and not the other: it takes both")),
    }
}

struct Found {
    directory: bool,
    procfs: bool,
}

/// A detached copy of what is at `path`, which is looked up once.
fn open_source(
    sources: Sources<'_>,
    path: &Path,
    recursive: bool,
    nofollow: bool,
) -> std::io::Result<(OwnedFd, Found)> {
    let last = if nofollow { OFlag::O_NOFOLLOW } else { OFlag::empty() };
    let place = sources.open(path, last)?;
    let found = Found {
        directory: fstat(&place)?.st_mode & libc::S_IFMT == libc::S_IFDIR,
        procfs: fstatfs(&place)?.filesystem_type() == PROC_SUPER_MAGIC,
    };
    Ok((clone_tree(place.as_fd(), recursive)?, found))
}

/// What the source of `requested` says, if it is a symbolic link.
fn link_at(requested: &Requested, bundle: &Path) -> Option<PathBuf> {
    std::fs::read_link(bundle.join(requested.source().as_deref()?)).ok()
}
