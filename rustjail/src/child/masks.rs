//! Paths that a container may not read, or not write.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::{Mode, fstat, major, minor},
};

use super::{mounts, step::At, tree::Tree};
use crate::{
    plan::{FileSystem, FsOption},
    sync::StepError,
    sys::mount::{self, Attributes},
};

/// Hides what is at each of `paths`: a file behind the null device, a directory behind an empty read-only
/// one. All directories share one file system, which is one less for the kernel to take down each.
pub(super) fn hide(paths: &[PathBuf], tree: &Tree<'_>) -> Result<(), StepError> {
    let mut null = None;
    let mut empty: Option<OwnedFd> = None;
    for path in paths {
        let Some(target) = tree.find(path).at("open, to mask it,", path)? else {
            continue;
        };
        let kind = fstat(&target).at("look at", path)?.st_mode & libc::S_IFMT;
        let cover = match (kind == libc::S_IFDIR, &empty) {
            (false, _) => {
                let source = match null.take() {
                    Some(source) => source,
                    None => null_device()?,
                };
                let copy = mount::clone_tree(source.as_fd(), false).at("copy the mount of", "/dev/null")?;
                null = Some(source);
                copy
            }
            // A mount can be copied once it is attached, which the first use does.
            (true, Some(first)) => mount::clone_tree(first.as_fd(), false).at("copy the cover of", path)?,
            (true, None) => empty_directory(path)?,
        };
        mount::attach(cover.as_fd(), target.as_fd()).at("mask", path)?;
        if kind == libc::S_IFDIR {
            empty.get_or_insert(cover);
        }
    }
    Ok(())
}

/// Makes what is at each of `paths`, and all below it, read-only.
pub(super) fn protect(paths: &[PathBuf], tree: &Tree<'_>) -> Result<(), StepError> {
    let read_only = Attributes { set: libc::MOUNT_ATTR_RDONLY, ..Attributes::default() };
    for path in paths {
        let Some(target) = tree.find(path).at("open, to make it read-only,", path)? else {
            continue;
        };
        let copy = mount::clone_tree(target.as_fd(), true).at("copy the mount of", path)?;
        mount::set_attributes(copy.as_fd(), read_only, true).at("make read-only", path)?;
        mount::attach(copy.as_fd(), target.as_fd()).at("make read-only", path)?;
    }
    Ok(())
}

/// The machine's null device, opened before the container's tree is `/` and checked to be no other file:
/// a masked path bound to something else would be readable after all (CVE-2025-31133).
fn null_device() -> Result<OwnedFd, StepError> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let null = open("/dev/null", flags, Mode::empty()).at("open", "/dev/null")?;
    let found = fstat(&null).at("look at", "/dev/null")?;
    let is_null = found.st_mode & libc::S_IFMT == libc::S_IFCHR
        && (major(found.st_rdev), minor(found.st_rdev)) == (1, 3);
    if is_null { Ok(null) } else { Err(Errno::ENODEV).at("find the null device at", "/dev/null") }
}

fn empty_directory(path: &Path) -> Result<OwnedFd, StepError> {
    let nothing = FileSystem {
        kind: "tmpfs".into(),
        source: Some("masked".into()),
        options: vec![
            FsOption::Value("nr_blocks".into(), "1".into()),
            FsOption::Value("nr_inodes".into(), "1".into()),
        ],
        copy_up: false,
    };
    let attributes =
        libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    mounts::create(&nothing, attributes, path)
}
