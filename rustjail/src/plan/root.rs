//! The file tree of a container.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{IdMap, Slot};
use crate::hooks::{About, Hook};
pub use crate::sys::mount::Attributes;

/// A root file system and everything that is put into it. All paths are absolute, as the container sees
/// them, and free of `.` and `..`; the child resolves them beneath the root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Root {
    /// A detached copy of the tree that becomes `/`.
    pub tree: Slot,
    /// Where it is put until it becomes `/`; `None` puts it over the host's. Hooks look for it at its path.
    pub place: Option<PathBuf>,
    /// Programs others want run before the container's.
    pub hooks: Hooks,
    /// Made in this order.
    pub mounts: Vec<Mount>,
    /// Device nodes and FIFOs.
    pub devices: Vec<Device>,
    /// The links every program expects in `/dev` are made; not when `/dev` is the host's own.
    pub dev_links: bool,
    /// The slave of the init's terminal is bound to `/dev/console`.
    pub console: bool,
    /// Settings below `/proc/sys`, by their path from there.
    pub sysctls: Vec<(PathBuf, String)>,
    /// Made unreadable, where they exist.
    pub masked: Vec<PathBuf>,
    /// Made read-only, where they exist.
    pub readonly_paths: Vec<PathBuf>,
    /// `/` itself is read-only.
    pub readonly: bool,
    /// The host's tree is hidden beneath `/` and not let go of, for a `/` that pivot_root refuses to leave.
    pub no_pivot: bool,
    /// `/dev` is made read-only once the devices are in it.
    pub readonly_dev: bool,
    /// What becomes of `/` when it is in place; `None` leaves it a slave of the tree it was copied from.
    pub propagation: Option<Propagation>,
}

/// The hooks of a container's creation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hooks {
    /// The maker has some to run in its own namespaces; the child waits for it.
    pub runtime: bool,
    /// Run by the child before the root is changed.
    pub create_container: Vec<Hook>,
    /// Run by the child before its program.
    pub start_container: Vec<Hook>,
    /// What they are told.
    pub about: About,
}

/// How mounts made elsewhere show up below a mount, and the other way round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Propagation {
    /// MS_SHARED, MS_SLAVE, MS_PRIVATE or MS_UNBINDABLE.
    pub kind: u64,
    /// Of all below it as well.
    pub recursive: bool,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// Where; made when it is missing.
    pub target: PathBuf,
    /// What.
    pub kind: MountKind,
    /// The target is not looked up further when it is a symbolic link.
    pub nofollow: bool,
    /// Of the mount itself.
    pub attributes: Attributes,
    /// Of the mount and all below it.
    pub recursive: Attributes,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MountKind {
    /// An existing file or tree.
    Bind(Bind),
    /// A file system of its own.
    FileSystem(FileSystem),
    /// The control groups.
    Cgroup(CgroupView),
    /// No mount, but a symbolic link to this.
    Link(PathBuf),
}

/// A detached copy of an existing mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Opened by the compiler, so that the child looks no path of the host up.
    pub tree: Slot,
    /// Decides whether a missing target is made as a directory or a file.
    pub directory: bool,
    /// The ids its files are shown with.
    pub mapped: Option<IdMapped>,
}

/// The id map of a mount, which the maker gives it before there is a child: it takes privileges over the
/// file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapped {
    /// Of users, `inside` being those of the file system; with `gids`, of a user namespace made for this.
    pub uids: Vec<IdMap>,
    /// Of groups.
    pub gids: Vec<IdMap>,
    /// An existing user namespace in the place of the two.
    pub namespace: Option<Slot>,
    /// The mounts below are mapped as well.
    pub recursive: bool,
}

/// A new file system, as fsopen(2) and fsconfig(2) take it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Its type.
    pub kind: String,
    /// What mountinfo shows as its source, or the device it is on.
    pub source: Option<String>,
    /// Its options.
    pub options: Vec<FsOption>,
    /// It begins as a copy of what it hides.
    pub copy_up: bool,
}

/// An option of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FsOption {
    /// `key`
    Flag(String),
    /// `key=value`
    Value(String, String),
}

/// How a container sees the control groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CgroupView {
    /// cgroup2, rooted at the container's own group by its cgroup namespace.
    Unified,
    /// cgroup2 without a cgroup namespace: the container's own group, bound from this mount of the host.
    UnifiedBind(PathBuf),
    /// A tmpfs with one directory for each v1 hierarchy; `namespaced` as above.
    Legacy {
        /// Whether the container has a cgroup namespace.
        namespaced: bool,
        /// The host's.
        hierarchies: Vec<CgroupHierarchy>,
    },
}

/// One mounted v1 hierarchy of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupHierarchy {
    /// The name of its directory.
    pub name: String,
    /// Where the host has it.
    pub host: PathBuf,
    /// Its controllers, or `name=...`: what identifies it in `/proc/PID/cgroup`.
    pub controllers: Vec<String>,
}

/// A device node or a FIFO.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Where.
    pub path: PathBuf,
    /// Of which kind.
    pub kind: DeviceKind,
    /// 0 for a FIFO.
    pub major: u32,
    /// 0 for a FIFO.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The kinds of node mknod(2) makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// Block device.
    Block,
    /// Character device.
    Character,
    /// Named pipe.
    Fifo,
}
