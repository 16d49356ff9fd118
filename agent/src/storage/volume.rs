//! How full a mounted volume is, and making it larger.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
};

use nix::sys::{
    stat::{major, minor},
    statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, fstatfs},
    statvfs::fstatvfs,
};
use rustjail::sys::resize;

use super::{
    error::{Result, StorageError, failed_to},
    place,
};

const SECTOR: u64 = 512;
const SHARED: &str = "/run/kata-containers/shared/containers/";
/// XFS_SUPER_MAGIC of `linux/magic.h`.
const XFS_SUPER_MAGIC: FsType = FsType(0x5846_5342);

/// What a volume has of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All there is.
    pub total: u64,
    /// Not in use, including what only root may use.
    pub available: u64,
}

/// Bytes and inodes of the volume at `path`.
pub fn stats(path: &Path) -> Result<(Usage, Usage)> {
    let look = || format!("look at the volume {}", path.display());
    let root = File::open(path).map_err(failed_to(look))?;
    let stats = fstatvfs(&root).map_err(failed_to(look))?;
    let block = stats.fragment_size();
    let bytes = Usage {
        total: stats.blocks().saturating_mul(block),
        available: stats.blocks_free().saturating_mul(block),
    };
    Ok((bytes, Usage { total: stats.files(), available: stats.files_free() }))
}

/// Grows the file system at `path` to `size` bytes, or to all of its device when that is 0.
pub fn resize(path: &Path, size: u64) -> Result<()> {
    let failed = || format!("grow the volume {}", path.display());
    let refuse = |problem: String| StorageError::Invalid { mount_point: path.to_owned(), problem };
    let root = File::open(place::by_descriptor(&place::open(path).map_err(failed_to(failed))?));
    let root = root.map_err(failed_to(failed))?;
    let (device, block) = device(path, &root)?;
    let size = if size == 0 { device } else { size };
    if size > device {
        return Err(refuse(format!(
            "is on a device of {device} bytes and cannot grow to {size}; grow the device first"
        )));
    }
    let stats = fstatvfs(&root).map_err(failed_to(failed))?;
    let present = stats.blocks().saturating_mul(stats.fragment_size());
    let kind = fstatfs(&root).map_err(failed_to(failed))?.filesystem_type();
    if size < present && kind != BTRFS_SUPER_MAGIC {
        return Err(refuse(format!("has {present} bytes and cannot shrink to {size}")));
    }
    let root = root.as_fd();
    let grown = match kind {
        EXT4_SUPER_MAGIC => resize::ext4(root, size / block),
        XFS_SUPER_MAGIC => resize::xfs(root, size / block),
        BTRFS_SUPER_MAGIC => resize::btrfs(root, size),
        other => {
            return Err(refuse(format!(
                "has a file system of type {:#x}; ext4, xfs and btrfs can grow while mounted",
                other.0
            )));
        }
    };
    grown.map_err(failed_to(failed))
}

/// The length in bytes of the device below a mounted file system, and the file system's block.
fn device(path: &Path, root: &File) -> Result<(u64, u64)> {
    let failed = || format!("measure the device of {}", path.display());
    let metadata = root.metadata().map_err(failed_to(failed))?;
    let number = match place::mounted(path).map_err(failed_to(failed))? {
        // btrfs shows a number of its own for what is in it.
        Some((_, source)) => std::fs::metadata(source).map_or(metadata.dev(), |node| node.rdev()),
        None => {
            let problem = "is not the root of a mounted file system".to_owned();
            return Err(StorageError::Invalid { mount_point: path.to_owned(), problem });
        }
    };
    let file = format!("/sys/dev/block/{}:{}/size", major(number), minor(number));
    let text = std::fs::read_to_string(&file).map_err(|source| StorageError::Io {
        action: format!("read {file} to grow {}; only file systems on a block device grow", path.display()),
        source,
    })?;
    let sectors: u64 = text.trim().parse().map_err(io::Error::other).map_err(failed_to(failed))?;
    Ok((sectors.saturating_mul(SECTOR), metadata.blksize().max(1)))
}

/// Looks at every mount below the directory shared with the host, so that the host's daemon forgets inodes that
/// are gone. What each look finds does not matter.
pub fn touch_shared_mounts() -> Result<()> {
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo");
    let table = table.map_err(failed_to(|| "read the mount table".to_owned()))?;
    for path in
        table.lines().filter_map(|line| line.split(' ').nth(4)).filter(|path| path.starts_with(SHARED))
    {
        let _looked = std::fs::metadata(path);
    }
    Ok(())
}
