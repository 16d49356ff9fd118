//! Handing the listener of a filter to the program that decides about calls in its place.
//!
//! ```text
//!   child                     maker                        agent at listenerPath
//!     | installs the filter     |                                  |
//!     |-- LISTENER, its number->|                                  |
//!     |                         |-- pidfd_getfd(2)                 |
//!     |                         |-- ContainerProcessState, fd ---->|
//!     |<------------- TAKEN ----|                                  |
//!     | execve                  |                                  | answers calls
//! ```
//!
//! The first call under the filter is the write of that number, so a profile cannot have `write` notified:
//! nobody could answer yet. From then on any call may be, the read of TAKEN too.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use oci_spec::runtime::{ContainerProcessState, ContainerProcessStateBuilder, State};

use crate::sys::scm;

/// The name that runtime-spec gives the listener among the descriptors that are sent.
const FD_NAME: &str = "seccompFd";

/// How long the agent is given to take what is sent. The process waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a listener was not handed over.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// Its state could not be put into words.
    #[error("cannot describe the process to the seccomp agent: {0}")]
    State(String),
    /// Nobody took it.
    #[error(
        "cannot {action} the seccomp agent at {}: {source} (linux.seccomp.listenerPath is the Unix stream socket \
         it listens at)",
        path.display()
    )]
    Agent {
        /// What was being done.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

/// Sends `listener` to the agent at `path`, with what runtime-spec wants said about the process `pid` of the
/// container in `state`.
pub fn hand_over(
    path: &Path,
    metadata: Option<&str>,
    pid: i32,
    state: State,
    listener: BorrowedFd<'_>,
) -> Result<(), NotifyError> {
    let described = describe(metadata, pid, state)?;
    let failed = |action| move |source| NotifyError::Agent { action, path: path.to_owned(), source };
    let agent = UnixStream::connect(path).map_err(failed("connect to"))?;
    agent.set_write_timeout(Some(PATIENCE)).map_err(failed("set a timeout for"))?;
    let sent = scm::send(agent.as_fd(), &described, &[listener]).map_err(failed("send the listener to"))?;
    io::Write::write_all(&mut (&agent), described.get(sent..).unwrap_or_default())
        .map_err(failed("send the state to"))
}

fn describe(metadata: Option<&str>, pid: i32, state: State) -> Result<Vec<u8>, NotifyError> {
    let mut described = ContainerProcessStateBuilder::default()
        .version(state.version().clone())
        .fds(vec![FD_NAME.to_owned()])
        .pid(pid)
        .state(state);
    if let Some(metadata) = metadata.filter(|metadata| !metadata.is_empty()) {
        described = described.metadata(metadata);
    }
    let described: ContainerProcessState =
        described.build().map_err(|error| NotifyError::State(error.to_string()))?;
    serde_json::to_vec(&described).map_err(|error| NotifyError::State(error.to_string()))
}
