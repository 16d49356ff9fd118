//! CopyFile: files that a host brings into the sandbox's shared tree, piece by piece.
//!
//! ```text
//!   first piece (offset 0) --> NAME.part beside the target --> next piece, at its end or before --> ...
//!                                     |  as long as the file          ^        |  after its end: refused
//!                                     v                               '--------'
//!                             owner, mode, rename over the target
//! ```
//!
//! The target is as it was until the last piece is there, and nothing but the partial file itself remembers where a
//! copy stands, so it can go on after the connection, or the agent, was lost. No lookup leaves the tree, whatever
//! links are in it ([`tree`]). Pieces of one path are written in the order in which they came.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    rc::Rc,
};

use tokio::sync::Mutex;

mod file;
mod request;
#[cfg(test)]
mod tests;
mod tree;

pub use request::{Kind, Piece};

/// The only tree that hosts may copy into.
pub const ROOT: &str = "/run/kata-containers/shared/containers";

/// Why a piece was not copied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request can be met in no state of the tree.
    #[error("CopyFile {path:?}: {problem}")]
    Invalid {
        /// As the request has it.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The piece does not follow what is there.
    #[error(
        "CopyFile {path:?}: a piece for offset {offset} cannot follow the {present} bytes that are there"
    )]
    OutOfOrder {
        /// The target.
        path: String,
        /// Where the piece belongs.
        offset: u64,
        /// How much there is.
        present: u64,
    },
    /// Something else is in the way.
    #[error("CopyFile {path:?}: {found} is in the way")]
    InTheWay {
        /// The target.
        path: String,
        /// What it is.
        found: &'static str,
    },
    /// A system call failed.
    #[error("CopyFile {path:?}: cannot {action}: {source}")]
    Io {
        /// The target.
        path: String,
        /// What was being done.
        action: String,
        /// How it failed.
        source: io::Error,
    },
}

/// The result of copying.
pub type Result<T> = std::result::Result<T, Error>;

/// Copies pieces into one tree.
#[derive(Debug)]
pub struct Copier {
    root: PathBuf,
    /// A turn for each path that is being written to.
    turns: RefCell<HashMap<PathBuf, Rc<Mutex<()>>>>,
}

impl Default for Copier {
    fn default() -> Self {
        Self::into_tree(Path::new(ROOT))
    }
}

impl Copier {
    /// Copies below `root`, which is made when it is needed.
    pub fn into_tree(root: &Path) -> Self {
        Self { root: root.to_owned(), turns: RefCell::default() }
    }

    /// Writes a piece, and with the last one gives the file its name.
    pub async fn copy(&self, piece: Piece) -> Result<()> {
        let place = piece.place(&self.root)?;
        let turn = Rc::clone(self.turns.borrow_mut().entry(place.clone()).or_default());
        let done = {
            let _turn = turn.lock().await;
            let (root, place) = (self.root.clone(), place.clone());
            let path = piece.path.clone();
            crate::task::blocking(move || file::copy(&root, &place, &piece)).await.unwrap_or_else(|source| {
                Err(Error::Io { path, action: "finish work on the pool".to_owned(), source })
            })
        };
        let mut turns = self.turns.borrow_mut();
        // The table's own, and ours: nobody waits.
        if Rc::strong_count(&turn) == 2 {
            turns.remove(&place);
        }
        done
    }
}
