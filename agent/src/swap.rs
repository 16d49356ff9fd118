//! Swap on disks that hosts plug in. A host prepares them with mkswap; the kernel refuses any other.

use std::{
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

/// Why there is no more swap than before.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Only a disk of the guest's own will do.
    #[error("cannot swap to {path:?}: it is not a block device below /dev")]
    NoDisk {
        /// As the request has it.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot swap to {path:?}: {source}; has it been prepared with mkswap, and is it not in use?")]
    Io {
        /// The device.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

/// Begins to swap to the block device `path`.
pub async fn add(path: PathBuf) -> Result<(), Error> {
    let disk = path.clone();
    let done =
        crate::task::blocking(move || swap_to(&disk)).await.unwrap_or_else(|panicked| Err(Some(panicked)));
    done.map_err(|error| match error {
        Some(source) => Error::Io { path, source },
        None => Error::NoDisk { path },
    })
}

/// `None` where it is no disk.
fn swap_to(path: &Path) -> Result<(), Option<io::Error>> {
    let real = fs::canonicalize(path).map_err(Some)?;
    if !path.is_absolute()
        || !real.starts_with("/dev")
        || !fs::metadata(&real).map_err(Some)?.file_type().is_block_device()
    {
        return Err(None);
    }
    rustjail::sys::swap::swapon(&real).map_err(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_block_devices_are_swapped_to() {
        for path in ["", "null", "/dev/null", "/dev", "/etc/passwd", "/proc/self/exe"] {
            let error = add(path.into()).await.unwrap_err();
            assert!(matches!(error, Error::NoDisk { .. } | Error::Io { .. }), "{path}: {error}");
        }
        assert!(matches!(add("/dev/null".into()).await, Err(Error::NoDisk { .. })));
        assert!(matches!(add("/etc/passwd".into()).await, Err(Error::NoDisk { .. })));
    }
}
