//! The one place where descriptors are registered with tokio's reactor.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers `fd`, which must not block, for `interest`.
///
/// Tokio deprecates its safe constructors because `AsRawFd` alone does not promise that the number stays the
/// same descriptor while it is registered; every type that is `AsFd` here owns its descriptor and does.
#[allow(deprecated)]
pub fn register<T: AsFd + AsRawFd>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(fd, interest)
}
