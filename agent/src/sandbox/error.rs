//! Everything a call on the sandbox can fail with. `rpc::status` maps each variant to a ttrpc code.

use std::{io, path::PathBuf};

use rustjail::{cgroup::CgroupError, compile::CompileError, hooks::HookError, sync::StepError};

use crate::{device::DeviceError, hotplug::HotplugError, storage::StorageError, supervisor::LaunchError};

use super::state::State;

/// Why a call on the sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A container or exec id that may not be used.
    #[error("invalid {kind} id {id:?}: {reason}")]
    InvalidId {
        /// "container" or "exec".
        kind: &'static str,
        /// As the request has it.
        id: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No such container. Hosts know the first words.
    #[error("Invalid container id {id:?}: it does not exist in this sandbox")]
    UnknownContainer {
        /// As the request has it.
        id: String,
    },
    /// No such process in a container that exists.
    #[error("no process {exec_id:?} in container {container_id:?}")]
    UnknownProcess {
        /// The container.
        container_id: String,
        /// As the request has it.
        exec_id: String,
    },
    /// The id is taken.
    #[error("{kind} id {id:?} already exists")]
    Exists {
        /// "container", "exec" or "sandbox".
        kind: &'static str,
        /// The id.
        id: String,
    },
    /// The container is in a state that does not allow the call.
    #[error("cannot {action} container {id:?}: it is {state}")]
    WrongState {
        /// The container.
        id: String,
        /// What was asked.
        action: &'static str,
        /// What it is in.
        state: State,
    },
    /// The request as a whole cannot be met.
    #[error("{0}")]
    Invalid(String),
    /// The OCI configuration is wrong.
    #[error(transparent)]
    Spec(#[from] CompileError),
    /// A step of process creation failed in the new process.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A hook of the container failed.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// No process could be made.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A storage cannot be had.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A device cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Hardware that was waited for did not come.
    #[error(transparent)]
    Hotplug(#[from] HotplugError),
    /// A control group failed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The confidential data hub failed.
    #[cfg(feature = "cdh")]
    #[error("cannot {what}: {source}")]
    Hub {
        /// What was asked of it, without the secret.
        what: String,
        /// Why it is not done.
        source: crate::cdh::HubError,
    },
    /// The container has no shared PID namespace to join.
    #[error("Sandbox does not have sandbox_pidns: the container that defined it is gone")]
    NoSandboxPidns,
    /// Nobody has the mount that a new container is to share.
    #[error("there is no running container {name:?} to share its mount {} with the new one", path.display())]
    NoMountSource {
        /// As the request has it.
        name: String,
        /// Where the mount should be.
        path: PathBuf,
    },
    /// The process has no terminal. Hosts know this text.
    #[error("no tty")]
    NoTty,
    /// The stream was closed, or goes elsewhere.
    #[error("{stream} of process {exec_id:?} is closed")]
    StreamClosed {
        /// Which.
        stream: &'static str,
        /// Whose.
        exec_id: String,
    },
    /// The call needs a sandbox and there is none, or it is being destroyed.
    #[error("the sandbox is {0}")]
    Sandbox(&'static str),
    /// Who waits for OOM kills waits for nothing.
    #[error("no OOM event is to come: the sandbox is destroyed")]
    EventsEnded,
    /// The process ended before its program was reached, without saying why.
    #[error("process {exec_id:?} ended with status {status} before its program ran; was it killed?")]
    Died {
        /// Which.
        exec_id: String,
        /// As `wait` would tell it.
        status: i32,
    },
    /// The caller's time is over; the work goes on. Hosts know the last words.
    #[error("{action} has not finished in {seconds} s and goes on: ETIME: Timer expired")]
    Timeout {
        /// What was being done.
        action: String,
        /// How long the caller would wait.
        seconds: u64,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done, with the path if there is one.
        action: String,
        /// How it failed.
        source: io::Error,
    },
}

/// Adds what was being done to an `io::Error`.
pub(super) fn failed_to(action: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> Error {
    |source| Error::Io { action: action(), source }
}
