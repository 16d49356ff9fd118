//! The program of a process and all that it inherits.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Slot;
use crate::seccomp::Filter;
pub use crate::sys::sched::Scheduler;

/// Everything between the namespaces and execve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// At least one.
    pub args: Vec<String>,
    /// `NAME=value` each.
    pub env: Vec<String>,
    /// Absolute, as the container sees it; made when it is missing.
    pub cwd: PathBuf,
    /// Whom it acts as.
    pub identity: Identity,
    /// The file mode creation mask.
    pub umask: u32,
    /// Its privileges.
    pub capabilities: Capabilities,
    /// Its resource limits.
    pub rlimits: Vec<Rlimit>,
    /// execve can give it no privilege.
    pub no_new_privileges: bool,
    /// How readily the OOM killer takes it; `None` leaves the launching process's.
    pub oom_score_adj: Option<i32>,
    /// PER_*.
    pub personality: Option<u32>,
    /// How it is given processors.
    pub scheduler: Option<Scheduler>,
    /// How it is given disks: a class in the bits from 13 on, a level in those below.
    pub io_priority: Option<u16>,
    /// Which processors it is given.
    pub affinity: Affinity,
    /// Where its memory is.
    pub memory_policy: Option<MemoryPolicy>,
    /// What the security modules know it by.
    pub labels: Labels,
    /// The system calls it may make.
    pub seccomp: Option<Filter>,
    /// Its descriptors 0 to 2.
    pub stdio: Stdio,
}

/// User and groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Those of the maker stay, because the user namespace lets nobody change them.
    pub keep_groups: bool,
}

/// Capability sets as masks: bit N for capability N.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The most any later execve can give.
    pub bounding: u64,
    /// What permission checks look at.
    pub effective: u64,
    /// Kept over execve by a file that has them inheritable too.
    pub inheritable: u64,
    /// What may be made effective.
    pub permitted: u64,
    /// Kept over execve by any file.
    pub ambient: u64,
}

/// Sets of processors, bit N of the words for processor N; an empty one changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// Before it enters the cgroup.
    pub initial: Vec<u64>,
    /// Once it is there.
    pub settled: Vec<u64>,
}

/// A NUMA policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// MPOL_* with its MPOL_F_*.
    pub mode: i32,
    /// Bit N of the words for node N.
    pub nodes: Vec<u64>,
}

/// What the program is labelled with by execve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// SELinux context.
    pub selinux: Option<String>,
    /// AppArmor profile.
    pub apparmor: Option<String>,
}

/// A resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// RLIMIT_*.
    pub resource: u32,
    /// What is enforced.
    pub soft: u64,
    /// How far `soft` may be raised.
    pub hard: u64,
}

/// Where the standard streams go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdio {
    /// Descriptors 0, 1 and 2.
    Streams([Slot; 3]),
    /// A pty of the container's own devpts, of this size.
    Terminal(Option<WindowSize>),
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Height.
    pub rows: u16,
    /// Width.
    pub columns: u16,
}
