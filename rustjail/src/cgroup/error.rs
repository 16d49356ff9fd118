//! What can go wrong with a control group, in sentences that say what to do about it.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::freezer::FREEZE_WAIT;

/// What went wrong with a control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A file or directory operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// The kernel refused a value.
    #[error("cannot write {value:?} to {}: {source}", path.display())]
    Write {
        /// The first characters of what was written.
        value: String,
        /// To which file.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// The kernel does not offer the file that a requested limit is written to.
    #[error(
        "{} does not exist: this kernel does not offer that limit, leave it out of the resources",
        path.display()
    )]
    NoFile {
        /// The file that is missing.
        path: PathBuf,
    },
    /// A limit was requested whose controller no hierarchy gives to the group.
    #[error(
        "no {controller} controller for the cgroup {}: mount it, or enable it in cgroup.subtree_control of every \
         group above (which the kernel refuses while one of them holds processes)",
        path.display()
    )]
    NoController {
        /// The controller's name.
        controller: String,
        /// The group.
        path: PathBuf,
    },
    /// The setting exists in the other cgroup version only.
    #[error("{setting} cannot be expressed in cgroup v2: leave it out of the resources")]
    OnlyV1 {
        /// The setting, as the runtime-spec calls it.
        setting: &'static str,
    },
    /// A value that no kernel would take, or that contradicts another.
    #[error("{setting} {value:?} is invalid: {reason}")]
    Invalid {
        /// The setting, as the runtime-spec calls it.
        setting: &'static str,
        /// The value given.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The memory limit is below what is in use, and the request asked to be told so.
    #[error("memory limit {limit} is below the {usage} bytes in use: free memory first, or raise the limit")]
    BelowUsage {
        /// The limit asked for.
        limit: u64,
        /// What is in use now.
        usage: u64,
    },
    /// A limit of an update was refused, and one that was written before it could not be put back.
    #[error("{refused}; putting back what was changed before it failed as well: {left}")]
    HalfUpdated {
        /// Why the update failed.
        refused: Box<CgroupError>,
        /// Which old limit could not be restored.
        left: Box<CgroupError>,
    },
    /// The cgroup2 directory cannot hold a container's processes.
    #[error(
        "the cgroup {} is of the type {kind:?} and cannot hold a container: a group above it is threaded, give the \
         container a cgroupsPath outside of that",
        path.display()
    )]
    NotDomain {
        /// The group.
        path: PathBuf,
        /// What its `cgroup.type` says.
        kind: String,
    },
    /// A new container's group has processes in it already.
    #[error("the cgroup {} already holds processes: give the container another cgroupsPath", path.display())]
    Occupied {
        /// The group.
        path: PathBuf,
    },
    /// A group could not be removed because a process is left in it.
    #[error("the cgroup {} still holds processes: kill them and wait until it is unpopulated", path.display())]
    Busy {
        /// The group, or one below it.
        path: PathBuf,
    },
    /// Some process did not stop.
    #[error(
        "the cgroup {} did not freeze within {} s: a process in it is stuck in the kernel",
        path.display(),
        FREEZE_WAIT.as_secs()
    )]
    NotFrozen {
        /// The group.
        path: PathBuf,
    },
    /// The kernel would not load or attach the program that enforces device rules.
    #[error("cannot {action} the device filter of {}: {source} (it needs CONFIG_CGROUP_BPF and CAP_BPF)", path.display())]
    DeviceFilter {
        /// What was being done.
        action: &'static str,
        /// The group.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

impl CgroupError {
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.into(), source: source.into() }
    }

    /// `value` may come from the wire and be megabytes long: only its head is kept.
    pub(super) fn write(path: &Path, value: &str, source: impl Into<io::Error>) -> Self {
        let value = value.chars().take(80).collect();
        Self::Write { value, path: path.to_owned(), source: source.into() }
    }

    pub(super) fn invalid(setting: &'static str, value: impl ToString, reason: &'static str) -> Self {
        let value = value.to_string().chars().take(80).collect();
        Self::Invalid { setting, value, reason }
    }

    /// The errno the kernel gave, if it was the kernel that refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Write { source, .. } | Self::DeviceFilter { source, .. } => {
                source.raw_os_error()
            }
            _ => None,
        }
    }
}
