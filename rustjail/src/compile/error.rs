//! Everything that can be wrong with a request.

use std::{io, path::PathBuf};

use crate::{hooks::HookError, resctrl::ResctrlError, seccomp::SeccompError};

/// What is wrong with a request. Each names the place in the configuration, so that whoever wrote it can
/// mend it.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The configuration lacks something that is required.
    #[error("the OCI configuration has no {0}")]
    Missing(&'static str),
    /// The configuration asks for something that is not done, and must not be ignored either.
    #[error("the OCI configuration sets {field}, which this runtime does not support: {advice}")]
    Unsupported {
        /// Where it is set.
        field: String,
        /// What to do instead.
        advice: &'static str,
    },
    /// The root file system cannot be used.
    #[error("cannot use root.path {} as the root file system: {source}", path.display())]
    Root {
        /// As it was resolved.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// A path or name that the kernel or the specification does not permit.
    #[error("{field} {value:?} {problem}")]
    Invalid {
        /// Where it is set.
        field: &'static str,
        /// As it is set.
        value: String,
        /// What it should or should not be.
        problem: &'static str,
    },
    /// A user or group id that means "none" to the kernel.
    #[error("{field} {id} is reserved by the kernel and cannot be used as an id")]
    Id {
        /// Where it is set.
        field: &'static str,
        /// As it is set.
        id: u32,
    },
    /// A namespace cannot be joined.
    #[error("cannot join the {kind} namespace {}: {source}", path.display())]
    Namespace {
        /// Of which kind.
        kind: &'static str,
        /// As the configuration names it.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// The descriptor or path of a namespace is of another kind.
    #[error("what was given as the {kind} namespace is a namespace of another kind, or none")]
    NamespaceKind {
        /// What it should be.
        kind: &'static str,
    },
    /// A setting that takes effect on all users of a namespace which is not the container's own.
    #[error("{field} needs the container to have {} {kind} namespace: add one to linux.namespaces", if *kind == "ipc" { "an" } else { "a" })]
    NeedsNamespace {
        /// What is set.
        field: String,
        /// Which the container lacks.
        kind: &'static str,
    },
    /// A mount option, or a combination of them.
    #[error("mount {}: option {option:?} {problem}", destination.display())]
    MountOption {
        /// Of which mount.
        destination: PathBuf,
        /// As it is set.
        option: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A mount as a whole.
    #[error("mount {}: {problem}", destination.display())]
    Mount {
        /// Which.
        destination: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The source of a bind mount.
    #[error("mount {}: cannot use the source {}: {error}", destination.display(), source_path.display())]
    MountSource {
        /// Of which mount.
        destination: PathBuf,
        /// As it was resolved.
        source_path: PathBuf,
        /// How it failed.
        error: io::Error,
    },
    /// The host's control groups cannot be shown to the container.
    #[error("cannot find out how the host's control groups are mounted: {0}")]
    Cgroups(io::Error),
    /// A hook that could never be run.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// A label of a security module that the kernel does not run.
    #[error(
        "{field} is a label of {module}, which this kernel does not run: remove it, or boot with {module} enabled"
    )]
    NoSecurityModule {
        /// Where it is set.
        field: &'static str,
        /// Which module.
        module: &'static str,
    },
    /// A network device that is to be handed to the container.
    #[error("linux.netDevices: cannot use the device {name}: {source}")]
    NetDevice {
        /// As the machine knows it.
        name: String,
        /// How it failed.
        source: io::Error,
    },
    /// The group of `linux.intelRdt`.
    #[error(transparent)]
    Resctrl(#[from] ResctrlError),
    /// The seccomp profile.
    #[error("linux.seccomp: {0}")]
    Seccomp(#[from] SeccompError),
    /// More descriptors than one message can carry.
    #[error(
        "the container needs {needed} descriptors (one a bind mount), more than {}",
        crate::plan::MAX_SLOTS
    )]
    TooManyDescriptors {
        /// How many.
        needed: usize,
    },
    /// A descriptor of the request cannot be used.
    #[error("cannot duplicate the descriptor of the container's init: {0}")]
    Descriptor(io::Error),
}

impl CompileError {
    /// For a value that is not as it has to be.
    pub(super) fn invalid(field: &'static str, value: impl ToString, problem: &'static str) -> Self {
        Self::Invalid { field, value: value.to_string(), problem }
    }
}
