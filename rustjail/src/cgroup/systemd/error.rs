//! What can go wrong between the runtime and systemd.

use std::{io, time::Duration};

/// What went wrong with a systemd unit.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// Nobody to talk to.
    #[error(
        "cannot connect to systemd at {tried}: {source} (the systemd cgroup manager needs a running systemd)"
    )]
    Connect {
        /// The sockets.
        tried: &'static str,
        /// How the last one failed.
        source: io::Error,
    },
    /// The connection broke.
    #[error("cannot {action} systemd: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// It would not let this user in.
    #[error("systemd refuses the connection: {0:?} (the systemd cgroup manager needs root)")]
    Rejected(String),
    /// It said something that is not D-Bus.
    #[error("systemd sent a malformed message")]
    Malformed,
    /// A call failed.
    #[error("systemd refuses {method} of {unit}: {message} ({name})")]
    Refused {
        /// Which.
        method: &'static str,
        /// About which unit.
        unit: String,
        /// D-Bus's name of the error.
        name: String,
        /// What systemd says.
        message: String,
    },
    /// A job was not done.
    #[error("systemd's job for {unit} ended as {result:?}: see journalctl -u {unit}")]
    Job {
        /// Which unit.
        unit: String,
        /// `failed`, `canceled`, `timeout`, `dependency` or `skipped`.
        result: String,
    },
    /// No answer.
    #[error("systemd did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// A name systemd would not take.
    #[error("cgroupsPath {path:?} is not of the form slice:prefix:name: {reason}")]
    Unit {
        /// As the configuration has it.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A limit that cannot be expressed.
    #[error(transparent)]
    Limit(#[from] super::super::CgroupError),
}
