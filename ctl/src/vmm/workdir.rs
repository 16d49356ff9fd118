//! The directory of one machine: sockets, logs, the initial filesystem. It goes when the value goes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::unistd::mkdtemp;

/// A directory of our own, for its owner only.
#[derive(Debug)]
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// Makes one. The path stays short: a Unix socket's has room for 107 bytes.
    pub fn new() -> io::Result<Self> {
        Ok(Self(mkdtemp(&std::env::temp_dir().join("berth-XXXXXX"))?))
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's cleaning of its temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
