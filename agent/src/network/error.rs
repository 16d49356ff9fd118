//! Everything a network call can fail with. `rpc::status` maps each variant to a ttrpc code.

use std::{io, process::ExitStatus, time::Duration};

use super::netlink::NetlinkError;

/// Why a network call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such interface. Hosts know the first words, and ask again while they read them.
    #[error("Link not found ({wanted})")]
    LinkNotFound {
        /// What it was looked for by.
        wanted: String,
    },
    /// The request cannot be met in any state of the guest.
    #[error("{0}")]
    Invalid(String),
    /// The kernel was asked and refused.
    #[error("cannot {action}: {source}")]
    Kernel {
        /// What was being done, to which object.
        action: String,
        /// Its answer.
        source: NetlinkError,
    },
    /// A change failed, and what had been done before it could not be undone either.
    #[error("{error}; and what was done before it could not be undone: {undoing}")]
    Stuck {
        /// Why the change failed.
        error: Box<Error>,
        /// Why it stays half done.
        undoing: Box<Error>,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: String,
        /// How it failed.
        source: io::Error,
    },
    /// The guest's image has no such program.
    #[error("the guest has no {program}: put iptables into its image (looked in {places})")]
    NoProgram {
        /// Which.
        program: String,
        /// Where it was looked for.
        places: String,
    },
    /// A program failed.
    #[error("{program} ended with {status}: {stderr}")]
    Program {
        /// Which.
        program: String,
        /// How.
        status: ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// A program did not end.
    #[error("{program} had not ended after {} s and was killed", .patience.as_secs())]
    Hung {
        /// Which.
        program: String,
        /// How long it had.
        patience: Duration,
    },
    /// A program printed more than a reply can hold.
    #[error("{program} printed {length} bytes; a reply holds {limit}")]
    TooLong {
        /// Which.
        program: String,
        /// How much it printed.
        length: u64,
        /// How much fits.
        limit: u64,
    },
}

/// Adds what was being done to the kernel's refusal.
pub(super) fn refused(action: impl FnOnce() -> String) -> impl FnOnce(NetlinkError) -> Error {
    |source| Error::Kernel { action: action(), source }
}

/// Adds what was being done to an `io::Error`.
pub(super) fn failed_to(action: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> Error {
    |source| Error::Io { action: action(), source }
}
