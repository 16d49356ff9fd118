//! Everything that can go wrong with a command.
//!
//! The words that callers look for are runc's: containerd, Docker and podman tell an unknown container by "does
//! not exist", one that has ended by "container not running", and a missing program by the errno's text.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustjail::{
    cgroup::{CgroupError, systemd::SystemdError},
    compile::CompileError,
    hooks::HookError,
    launch::SpawnError,
    resctrl::ResctrlError,
    seccomp::notify::NotifyError,
    sync::StepError,
};

use crate::status::Status;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line.
    #[error("{0}")]
    Usage(String),
    /// There is no such container.
    #[error("container does not exist: no {id:?} in {}", root.display())]
    NotFound {
        /// Its id.
        id: String,
        /// Where it was looked for.
        root: PathBuf,
    },
    /// There is such a container already.
    #[error("container with given ID already exists: {}", path.display())]
    Exists {
        /// Its directory.
        path: PathBuf,
    },
    /// An id that is no name of a file, or could be taken for something else.
    #[error("invalid container ID format: {id:?} is not made of letters, digits and _+-. alone")]
    Id {
        /// As it was given.
        id: String,
    },
    /// The container is not in a state in which this can be done.
    #[error("{problem} (container {id:?} is {status})")]
    State {
        /// What cannot be done.
        problem: &'static str,
        /// With which container.
        id: String,
        /// What it is.
        status: Status,
    },
    /// A file or directory operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// A document that is not what it should be.
    #[error("cannot understand {}: {source}", path.display())]
    Json {
        /// Where it was read from.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The bundle or the process asked for.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The container's control group.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// systemd, which was to make it.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// Its group of resctrl.
    #[error(transparent)]
    Resctrl(#[from] ResctrlError),
    /// A hook of the container.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// No process could be made.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The new process could not become its program.
    #[error("unable to start container process: {0}")]
    Step(#[from] StepError),
    /// What a user without privileges could not do.
    #[error(
        "cannot {step} as a user without privileges: {source} (`rustjail spec --rootless` writes a configuration that \
         needs none; ids of others need newuidmap and newgidmap, and to be the user's in /etc/subuid and /etc/subgid)"
    )]
    Unprivileged {
        /// What was being done.
        step: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The new process vanished.
    #[error("the container's process ended before it was ready: {ended}")]
    Died {
        /// How.
        ended: String,
    },
    /// The agent that decides about calls did not take them over.
    #[error(transparent)]
    Notify(#[from] NotifyError),
    /// Something the kernel did not do within the time that was given.
    #[error("{what} did not end within {seconds} s of being killed: look at its state in /proc")]
    Unkillable {
        /// The container.
        what: String,
        /// How long.
        seconds: u64,
    },
}

impl Error {
    /// For `map_err` behind an operation on `path`.
    pub fn io<E: Into<io::Error>>(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(E) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io { action, path, source: source.into() }
    }

    /// For `map_err` behind reading a document.
    pub fn json(path: impl AsRef<Path>) -> impl FnOnce(serde_json::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Json { path, source }
    }
}
