//! The listener of a process's seccomp filter, handed to the agent that the configuration names.

use std::os::fd::{AsFd, BorrowedFd};

use oci_spec::runtime::{ContainerState, Spec};
use rustjail::{seccomp::notify, sys::pidfd};

use crate::{
    error::Error,
    hooks,
    store::{Container, Record},
};

/// The process that waits for it.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'fd> {
    /// In our PID namespace.
    pub pid: i32,
    /// It.
    pub pidfd: BorrowedFd<'fd>,
    /// The listener's number there.
    pub listener: i32,
}

/// Hands over the listener of a process of `container`, which is in the state `status`.
pub fn hand_over(
    container: &Container,
    spec: &Spec,
    record: &Record,
    status: ContainerState,
    process: Waiting<'_>,
) -> Result<(), Error> {
    let listener = pidfd::take_fd(process.pidfd, process.listener)
        .map_err(Error::io("take the seccomp listener of", &container.id))?;
    let seccomp = spec.linux().as_ref().and_then(|linux| linux.seccomp().as_ref());
    let path = seccomp.and_then(|seccomp| seccomp.listener_path().as_ref());
    // The compiler makes no filter that notifies without it.
    let path = path.ok_or_else(|| Error::Usage("linux.seccomp.listenerPath is missing".into()))?;
    let metadata = seccomp.and_then(|seccomp| seccomp.listener_metadata().as_deref());
    let init = match status {
        ContainerState::Running => record.init.as_ref().map(|init| init.pid),
        _ => Some(process.pid),
    };
    let state = hooks::state(container, spec, record, status, init);
    Ok(notify::hand_over(path, metadata, process.pid, state, listener.as_fd())?)
}
