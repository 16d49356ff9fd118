//! Everything that unpacking an image can fail with.

use std::{io, path::PathBuf};

use nix::errno::Errno;

use super::tar::TarError;

/// Why an image is not there.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The layout, or a document in it, is not as it has to be.
    #[error("the image layout {}: {problem}", path.display())]
    Layout {
        /// Where it is.
        path: PathBuf,
        /// What is wrong, as a sentence.
        problem: String,
    },
    /// A blob is of another length than its descriptor says.
    #[error("the blob {digest} has {actual} bytes and its descriptor says {wanted}: the image is damaged")]
    Size {
        /// Which.
        digest: String,
        /// As described.
        wanted: u64,
        /// As it is.
        actual: u64,
    },
    /// A blob is another than its name says.
    #[error("{wanted} has the digest {actual}: the image is damaged or forged")]
    Digest {
        /// As described.
        wanted: String,
        /// As it is.
        actual: String,
    },
    /// A layer is no archive that can be read.
    #[error("the layer {layer} cannot be unpacked: {source}")]
    Archive {
        /// Its digest.
        layer: String,
        /// What is wrong with it.
        source: TarError,
    },
    /// A layer wants what none may.
    #[error("the layer {layer} has {path:?}, which {problem}")]
    Entry {
        /// Its digest.
        layer: String,
        /// As the archive has it.
        path: PathBuf,
        /// What is wrong, as a verb and the rest.
        problem: &'static str,
    },
    /// There is no room for it.
    #[error("no space is left for the image in {}: mount a larger file system there", path.display())]
    Full {
        /// Where layers are kept.
        path: PathBuf,
    },
    /// It took longer than it may.
    #[error("the image is not unpacked after {seconds} s (agent.image_pull_timeout)")]
    Late {
        /// How long it may take.
        seconds: u64,
    },
    /// The image names a user that its own files do not know.
    #[error("the image wants the user {user:?}, who is not in its /etc/{file}")]
    User {
        /// As the image has it.
        user: String,
        /// Where it would be.
        file: &'static str,
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

/// The result of everything here.
pub(super) type Result<T> = std::result::Result<T, ImageError>;

/// Adds what was being done.
pub(super) fn failed_to<E: Into<io::Error>>(action: impl FnOnce() -> String) -> impl FnOnce(E) -> ImageError {
    |source| ImageError::Io { action: action(), source: source.into() }
}

impl ImageError {
    /// What failed of the system, if it did.
    pub fn source_error(&self) -> Option<&io::Error> {
        match self {
            Self::Io { source, .. } | Self::Archive { source: TarError::Io(source), .. } => Some(source),
            _ => None,
        }
    }

    /// Whether the file system that layers are kept in is what is in the way.
    pub(super) fn is_full(&self) -> bool {
        let errno = self.source_error().and_then(io::Error::raw_os_error).map(Errno::from_raw);
        matches!(errno, Some(Errno::ENOSPC | Errno::EDQUOT))
    }
}
