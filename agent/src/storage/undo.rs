//! One thing a storage did to the guest, and how it is taken back.
//!
//! Taking back is exact and may be repeated: it looks whether the thing is still there, and touches nothing that
//! was there before or that others put there since.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, open},
    mount::{MntFlags, umount2},
    sys::stat::{Mode, fstat, fstatat},
    unistd::{UnlinkatFlags, syncfs, unlinkat},
};
use serde::{Deserialize, Serialize};

use super::{
    error::{Result, StorageError, failed_to},
    place,
};

/// More mounts than anybody stacks on one place.
const STACK: usize = 64;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Undo {
    /// Everything mounted at `path` on top of the mount `beneath`.
    Unmount { path: PathBuf, beneath: u64, flush: bool },
    /// An empty directory. One that is in use by now stays.
    Directory { path: PathBuf },
    /// A file that was made to be mounted on.
    File { path: PathBuf },
    /// A directory with all that is in it.
    Tree { path: PathBuf },
    /// Pages added to a pool of huge pages.
    HugePages { pool: PathBuf, pages: u64 },
    /// A device-mapper device.
    Mapping { uuid: String },
}

impl Undo {
    /// Takes it back.
    pub(super) fn run(&self) -> Result<()> {
        match self {
            Self::Unmount { path, beneath, flush } => unmount(path, *beneath, *flush),
            Self::Directory { path } => remove(path, UnlinkatFlags::RemoveDir),
            Self::File { path } => remove(path, UnlinkatFlags::NoRemoveDir),
            Self::Tree { path } => remove_tree(path),
            Self::HugePages { pool, pages } => give_back(pool, *pages),
            Self::Mapping { uuid } => super::mapping::remove(uuid),
        }
    }
}

/// Unmounts until `beneath` is on top again. A disk that is gone cannot be written to, now or ever: that is told, once,
/// and the mount goes all the same.
fn unmount(path: &Path, beneath: u64, flush: bool) -> Result<()> {
    let failed = || format!("unmount {}", path.display());
    let mut written = Ok(());
    for _ in 0..STACK {
        let Some(top) = place::find(path).map_err(failed_to(failed))? else { return written };
        if place::mount_id(&top).map_err(failed_to(failed))? == beneath {
            return written;
        }
        if !is_root(&top).map_err(failed_to(failed))? {
            // The mount it was on is gone itself, and another directory has its name now.
            return written;
        }
        if flush {
            written = written.and(write_out(&top, path));
        }
        drop(top);
        detach(path).map_err(failed_to(failed))?;
    }
    Err(StorageError::Conflict {
        mount_point: path.to_owned(),
        problem: format!("has more than {STACK} mounts on top of each other"),
    })
}

/// Copies of this mount in a dying container are dropped by the kernel a little later. What was written must be on
/// the disk before the host takes the disk away.
fn write_out(top: &impl std::os::fd::AsFd, path: &Path) -> Result<()> {
    let opened = open(&place::by_descriptor(top), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
    opened.and_then(|root| syncfs(&root)).map_err(failed_to(|| format!("write {} out", path.display())))
}

/// Whether `fd` is the root of its mount.
fn is_root(fd: &impl std::os::fd::AsFd) -> io::Result<bool> {
    let own = place::mount_id(fd)?;
    let how = nix::fcntl::openat(fd, "..", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
    match how {
        Ok(parent) => Ok(place::mount_id(&parent)? != own),
        // A file can only be mounted on another.
        Err(Errno::ENOTDIR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

fn detach(path: &Path) -> io::Result<()> {
    let (parent, name) = parent_and_name(path)?;
    let path = place::by_descriptor(&parent).join(name);
    match umount2(&path, MntFlags::UMOUNT_NOFOLLOW) {
        // Somebody in the guest has a file open there; the mount table does not have to wait for them.
        Err(Errno::EBUSY) => Ok(umount2(&path, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)?),
        outcome => Ok(outcome?),
    }
}

fn parent_and_name(path: &Path) -> io::Result<(std::os::fd::OwnedFd, &Path)> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::EINVAL.into());
    };
    Ok((place::open(parent)?, Path::new(name)))
}

fn remove(path: &Path, kind: UnlinkatFlags) -> Result<()> {
    let removed = parent_and_name(path).and_then(|(parent, name)| Ok(unlinkat(&parent, name, kind)?));
    match removed {
        Err(error) if !is_gone_or_used(&error) => {
            Err(failed_to(|| format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}

fn is_gone_or_used(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EBUSY | Errno::EROFS))
}

/// Only below a parent that is looked up without links, and not where something is mounted.
fn remove_tree(path: &Path) -> Result<()> {
    let removed = parent_and_name(path).and_then(|(parent, name)| {
        let found = match fstatat(&parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(()),
            found => found?,
        };
        if found.st_dev != fstat(&parent)?.st_dev {
            return Err(Errno::EBUSY.into());
        }
        fs::remove_dir_all(place::by_descriptor(&parent).join(name))
    });
    removed.map_err(failed_to(|| format!("remove {}", path.display())))
}

fn give_back(pool: &Path, pages: u64) -> Result<()> {
    let file = pool.join("nr_hugepages");
    let failed = || format!("give {pages} huge pages back to {}", file.display());
    let text = fs::read_to_string(&file).map_err(failed_to(failed))?;
    let now: u64 = text.trim().parse().unwrap_or(0);
    fs::write(&file, now.saturating_sub(pages).to_string()).map_err(failed_to(failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_or_in_use_by_others_is_no_error() {
        let dir = std::env::temp_dir().join(format!("berth-undo-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/b")).unwrap();
        let directory = |path: &str| Undo::Directory { path: dir.join(path) }.run();
        directory("a").unwrap();
        assert!(dir.join("a/b").exists());
        directory("a/b").unwrap();
        directory("a/b").unwrap();
        directory("a").unwrap();
        assert!(!dir.join("a").exists());
        Undo::Tree { path: dir.join("none") }.run().unwrap();
        Undo::File { path: dir.join("none") }.run().unwrap();
        let beneath = place::mount_id(&place::open(&dir).unwrap()).unwrap();
        Undo::Unmount { path: dir.clone(), beneath, flush: true }.run().unwrap();
        // Not a mount point: another number does not make it one.
        Undo::Unmount { path: dir.clone(), beneath: beneath + 100_000, flush: false }.run().unwrap();
        Undo::Tree { path: dir.clone() }.run().unwrap();
        assert!(!dir.exists());
    }
}
