//! The guest machine itself: its clock, its entropy, its memory.
//!
//! Everything here blocks and is short; it runs on the pool with data of its own.

use std::io;

pub mod clock;
pub mod entropy;
pub mod memory;

/// Why something about the guest could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be met by any guest.
    #[error("{0}")]
    Invalid(String),
    /// This guest's kernel does not have what it takes.
    #[error("this guest cannot {action}: its kernel has no {missing}")]
    Unsupported {
        /// What was asked.
        action: &'static str,
        /// What is not there.
        missing: String,
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

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds what was being done to an `io::Error`.
fn failed_to(action: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> Error {
    |source| Error::Io { action: action(), source }
}

/// Runs what may block on the pool.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    crate::task::blocking(work).await.map_err(failed_to(|| "finish work on the pool".to_owned())).flatten()
}
