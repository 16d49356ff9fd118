//! The flat description of one process to be made: what `compile` writes and `child` walks.
//!
//! A plan holds no decision and no text to be parsed: flags are bits, paths are resolved as far as they can
//! be from outside, descriptors are [`Slot`]s into the list that travels with it. It crosses from the agent
//! to the launcher as bytes, so every type here is plain data. A plan with a [`Root`] makes a container; one
//! without joins a container and runs one more process there.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use serde::{Deserialize, Serialize};

mod process;
mod root;

pub use crate::rtnetlink::NetDevice;
pub use process::{
    Affinity, Capabilities, Identity, Labels, MemoryPolicy, Process, Rlimit, Scheduler, Stdio, WindowSize,
};
pub use root::{
    Attributes, Bind, CgroupHierarchy, CgroupView, Device, DeviceKind, FileSystem, FsOption, Hooks, IdMapped,
    Mount, MountKind, Propagation, Root,
};

/// A descriptor of the [`Launch`](crate::launch::Launch) this plan belongs to, by its place in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot(pub u16);

impl Slot {
    /// The descriptor it names; EBADF when the list is shorter than the plan says.
    pub fn of<'fd>(self, fds: &[BorrowedFd<'fd>]) -> io::Result<BorrowedFd<'fd>> {
        fds.get(usize::from(self.0)).copied().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

/// One process: a container's init when `root` is set, else a process that joins a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The namespaces it is born into, and those it enters.
    pub namespaces: Namespaces,
    /// The cgroup it is put into.
    pub placement: Placement,
    /// The file tree it builds and makes its own.
    pub root: Option<Root>,
    /// The program and all that it inherits.
    pub process: Process,
    /// What execve waits for.
    pub gate: Gate,
    /// The child's end of the link to its maker.
    pub sync: Slot,
    /// How many of the maker's descriptors from 3 on the program gets too.
    pub preserved_fds: u32,
    /// It stays in its maker's session keyring, whose keys it can then use.
    pub keep_keyring: bool,
    /// The maker's binary, open for reading on a mount that nobody can write to: the process shows that as its own
    /// ([`crate::sys::binary`]). For one born into a new PID namespace, where nobody has seen it before.
    pub binary: Option<Slot>,
}

/// The namespaces of one process. A kind that is named nowhere is shared with the launching process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Namespaces {
    /// CLONE_NEW* bits of those it gets anew.
    pub create: u64,
    /// Those it enters, in order.
    pub joins: Vec<Join>,
    /// A PID namespace (or the pidfd of a process in it) to be born into. It is apart from `joins` because
    /// nobody can enter one: only the children of whoever has set it are in it.
    pub pid: Option<Slot>,
    /// Of the user namespace in `create`.
    pub uid_map: Vec<IdMap>,
    /// Of the user namespace in `create`.
    pub gid_map: Vec<IdMap>,
    /// Of the UTS namespace.
    pub hostname: Option<String>,
    /// Of the UTS namespace.
    pub domainname: Option<String>,
    /// Of the time namespace in `create`.
    pub time_offsets: Vec<TimeOffset>,
    /// Moved into the network namespace by the maker, and set up there by the child.
    pub net_devices: Vec<NetDevice>,
}

/// How far a clock of a time namespace is from the machine's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeOffset {
    /// As `/proc/self/timens_offsets` names it.
    pub clock: String,
    /// Whole seconds, either way.
    pub seconds: i64,
    /// Forward of those.
    pub nanoseconds: u32,
}

/// One setns(2).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// A namespace, or the pidfd of a process whose namespaces are meant.
    pub fd: Slot,
    /// CLONE_NEW* bits: one for a namespace, any for a pidfd.
    pub kinds: u64,
}

/// A range of ids, as a line of `/proc/PID/uid_map` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    /// The first id inside.
    pub inside: u32,
    /// The first id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// The cgroup of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// A cgroup2 directory, entered by clone3 itself.
    pub into: Option<Slot>,
    /// The `tasks` files of cgroup v1 and resctrl, to each of which the child writes "0".
    pub tasks: Vec<Slot>,
    /// More of them come over the sync socket ([`crate::sync::place`]), because they are being made: the child
    /// enters those before it does what depends on its groups, and before it leaves the host's tree at the latest.
    pub more: bool,
}

/// What execve waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// The maker's START, after READY was reported.
    Start,
    /// The START of whoever connects to this listening socket: the maker may be gone by then.
    Connection(Slot),
    /// Nothing. An init reports READY all the same.
    Open,
}

impl Plan {
    /// The form that crosses a socket or a memfd.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(io::Error::other)
    }

    /// The inverse of [`Plan::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        postcard::from_bytes(bytes).map_err(io::Error::other)
    }
}

/// How many descriptors one launch may carry; the kernel's SCM_MAX_FD, less one for the plan itself.
pub const MAX_SLOTS: usize = 252;

/// Adds `fd` to `fds` and names it.
pub fn slot(fds: &mut Vec<OwnedFd>, fd: OwnedFd) -> Slot {
    fds.push(fd);
    Slot((fds.len() - 1) as u16)
}
