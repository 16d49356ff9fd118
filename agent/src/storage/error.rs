//! Everything a storage can fail with.

use std::{io, path::PathBuf};

use super::{gpt::GptError, mapping::verity::VerityError};
use crate::hotplug::HotplugError;

/// Why a storage is not there.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// No such driver. Hosts know the first words.
    #[error("Failed to find the storage handler {driver:?}; this agent has {known}")]
    Driver {
        /// As the request has it.
        driver: String,
        /// Those there are.
        known: String,
    },
    /// A driver that another build of the agent has.
    #[error("the storage driver {driver:?} is not in this agent: build it with the feature {feature:?}")]
    Feature {
        /// As the request has it.
        driver: &'static str,
        /// What cargo knows it by.
        feature: &'static str,
    },
    /// The request cannot be met in any state of the guest.
    #[error("the storage for {} {problem}", mount_point.display())]
    Invalid {
        /// Which storage.
        mount_point: PathBuf,
        /// What is wrong, as a verb and the rest.
        problem: String,
    },
    /// Something else is there.
    #[error("the storage for {} {problem}", mount_point.display())]
    Conflict {
        /// Which storage.
        mount_point: PathBuf,
        /// What is in the way, as a verb and the rest.
        problem: String,
    },
    /// Its device is not there.
    #[error(transparent)]
    Device(#[from] HotplugError),
    /// What is on its device is not what it should be.
    #[error("{} {problem}", device.display())]
    Unusable {
        /// The device.
        device: PathBuf,
        /// What is wrong with it.
        problem: Box<ContentError>,
    },
    /// Its image cannot be unpacked.
    #[cfg(feature = "image-pull")]
    #[error(transparent)]
    Image(#[from] super::image::ImageError),
    /// A program did not do its work.
    #[error("{program} {}: {status}: {output}", path.display())]
    Program {
        /// Which.
        program: &'static str,
        /// On what.
        path: PathBuf,
        /// How it ended.
        status: String,
        /// What it said.
        output: String,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done, with the path.
        action: String,
        /// How it failed.
        source: io::Error,
    },
}

/// What is wrong with the content of a device, as the end of a sentence that begins with the device.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// Its partition table.
    #[error(transparent)]
    Gpt(#[from] GptError),
    /// Its hash tree.
    #[error(transparent)]
    Verity(#[from] VerityError),
}

/// The result of everything here.
pub type Result<T> = std::result::Result<T, StorageError>;

/// Adds what was being done.
pub(super) fn failed_to<E: Into<io::Error>>(
    action: impl FnOnce() -> String,
) -> impl FnOnce(E) -> StorageError {
    |source| StorageError::Io { action: action(), source: source.into() }
}
