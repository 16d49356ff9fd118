//! One file system in its place, and how steps of the boot fail.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
};

use nix::mount::{MsFlags, mount};

/// A step of the boot that failed.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A file system is missing.
    #[error("cannot mount {kind} on {target} (options {options:?}): {source}")]
    Mount {
        /// Its type.
        kind: &'static str,
        /// Where.
        target: String,
        /// As given to the kernel.
        options: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file, directory or link could not be made or read.
    #[error("cannot {action} {path}: {source}")]
    Path {
        /// "create", "read", "write".
        action: &'static str,
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Call {
        /// What for.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

pub(super) type Result<T> = std::result::Result<T, BootError>;

/// Mounts unless something is mounted there: a root file system's own tmpfs may hold files by now.
pub(super) fn mount_once(
    kind: &'static str,
    target: &str,
    flags: MsFlags,
    options: &'static str,
) -> Result<()> {
    if is_mount_point(target) {
        return Ok(());
    }
    directory(target)?;
    mount(Some(kind), target, Some(kind), flags, Some(options)).map_err(|errno| BootError::Mount {
        kind,
        target: target.to_owned(),
        options,
        source: errno.into(),
    })
}

pub(super) fn directory(path: &str) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|source| BootError::Path {
        action: "create",
        path: path.to_owned(),
        source,
    })
}

pub(super) fn is_mount_point(path: &str) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).map(|metadata| metadata.dev());
    match (device(Path::new(path)), device(&Path::new(path).join(".."))) {
        (Ok(own), Ok(parent)) => own != parent,
        _ => false,
    }
}
