//! What the owner of a confidential guest gives it at boot: the configuration of its guest components, and its policy.
//!
//! ```text
//!   a disk: "initdata" | length, u64 LE | gzip --> initdata.toml: version, algorithm, [data] --> DIRECTORY
//! ```
//!
//! A host could put another disk there later and have the worker killed, so it is looked for once in the guest's
//! life: that it was, and what was found, is in the agent's own directory before the first call is served. The digest
//! is what the hardware's evidence is compared with, by whoever trusts the guest. A disk that is there and
//! cannot be used is never passed over: nothing is served then.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use slog::Logger;

mod disk;
mod document;

pub use document::DocumentError;

use document::Document;

/// Where guest components and the policy engine look for what came.
pub const DIRECTORY: &str = "/run/confidential-containers/initdata";
/// The whole of it, beside its parts.
const WHOLE: &str = "initdata.toml";
/// The parts that somebody reads.
const PARTS: [&str; 3] = ["aa.toml", "cdh.toml", "policy.rego"];
/// The most that a disk may hold, packed and unpacked. A policy of some megabytes is the largest part there is.
const MOST: (u64, usize) = (4 << 20, 16 << 20);

/// Why a disk's initdata is not used.
#[derive(Debug, thiserror::Error)]
pub enum InitdataError {
    /// There is more than one.
    #[error("both {} and {} begin with \"initdata\"; give the guest one such disk", first.display(), second.display())]
    Twice {
        /// One.
        first: PathBuf,
        /// Another.
        second: PathBuf,
    },
    /// The length it declares.
    #[error("the initdata on {} is {length} bytes long, and must be {most} at most", path.display())]
    Long {
        /// The disk.
        path: PathBuf,
        /// As it says.
        length: u64,
        /// As it may.
        most: u64,
    },
    /// The packed content.
    #[error("the initdata on {} is no gzip that can be used: {source}", path.display())]
    Gzip {
        /// The disk.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The content is too large.
    #[error("the initdata on {} unpacks to more than {most} bytes", path.display())]
    Large {
        /// The disk.
        path: PathBuf,
        /// As it may.
        most: usize,
    },
    /// The content.
    #[error("the initdata on {} makes no sense: {source}", path.display())]
    Document {
        /// The disk.
        path: PathBuf,
        /// Why.
        source: DocumentError,
    },
    /// A system call failed.
    #[error("initdata: cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, InitdataError>;

/// Adds what was being done to an `io::Error`.
fn failed_to(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InitdataError {
    move |source| InitdataError::Io { action, path: path.to_owned(), source }
}

/// That a worker of this guest has looked.
#[derive(Debug, Serialize, Deserialize)]
struct Looked {
    /// Such as `sha384:` and hexadecimal digits; `None` if there was no disk.
    digest: Option<String>,
}

/// Places what a disk in `dev` brings into `directory`, unless an earlier worker has looked: it says so in `kept`.
pub fn settle(dev: &Path, directory: &Path, kept: &Path, generation: u32, log: &Logger) -> Result<()> {
    let record = kept.join("initdata.json");
    if generation > 0 && record.exists() {
        return Ok(());
    }
    let found = disk::find(dev)?;
    let digest = match &found {
        Some(disk) => {
            let document = read(disk)?;
            place(&document, directory)?;
            let parts: Vec<_> = PARTS.into_iter().filter(|name| document.part(name).is_some()).collect();
            slog::info!(log, "initdata in force"; "disk" => %disk.display(), "digest" => document.digest(),
                "parts" => parts.join(" "));
            Some(document.digest().to_owned())
        }
        None => None,
    };
    let text = serde_json::to_vec(&Looked { digest }).map_err(io::Error::from);
    text.and_then(|text| fs::write(&record, text)).map_err(failed_to("write", &record))
}

fn read(disk: &Path) -> Result<Document> {
    let path = || disk.to_owned();
    let (packed, most) = (disk::read(disk, MOST.0)?, MOST.1);
    let bytes = disk::unpack(&packed, most).map_err(|source| InitdataError::Gzip { path: path(), source })?;
    let bytes = bytes.ok_or_else(|| InitdataError::Large { path: path(), most })?;
    Document::parse(bytes).map_err(|source| InitdataError::Document { path: path(), source })
}

/// All of it or nothing: a directory that is complete takes the place of what was there.
fn place(document: &Document, directory: &Path) -> Result<()> {
    let fresh = directory.with_extension("new");
    for old in [&fresh, directory] {
        match fs::remove_dir_all(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed_to("remove", old)(error));
            }
            _ => {}
        }
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&fresh);
    made.map_err(failed_to("make", &fresh))?;
    let parts = PARTS.into_iter().filter_map(|name| Some((name, document.part(name)?)));
    for (name, text) in parts.chain([(WHOLE, document.text())]) {
        let path = fresh.join(name);
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
            .map_err(failed_to("write", &path))?;
    }
    fs::rename(&fresh, directory).map_err(failed_to("make", directory))
}

#[cfg(test)]
mod tests;
