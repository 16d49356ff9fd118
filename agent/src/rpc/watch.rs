//! Descriptors on the reactor.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Registers a descriptor, which stays open until the registration is dropped.
#[allow(
    deprecated,
    reason = "the safe constructor was deprecated for types that do not own their descriptor; OwnedFd does, and \
              unsafe code is for rustjail::sys alone"
)]
pub(super) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}
