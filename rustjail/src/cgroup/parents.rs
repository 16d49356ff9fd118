//! The groups above a container's own.
//!
//! Making `/pod/c1` may make `/pod` as well, and then removing `c1` has to remove it again, or groups pile up
//! with every container that ever was. But `/pod` may also be the host's, or another container's by now. So a
//! group that was made only to hold others is marked, by an attribute that lives and dies with its directory:
//! the mark outlives the process that set it, and needs no list that could be wrong. A marked group is removed
//! when nothing is in it; whether anything is, the kernel decides in the same instant as it removes.

use std::{
    ffi::{CStr, CString},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use nix::{errno::Errno, fcntl::OFlag};

use super::{CgroupError, CgroupPath, Hierarchies, dir::Dir};
use crate::sys::xattr;

/// In a namespace of attributes that takes CAP_SYS_ADMIN outside of any user namespace.
const MARK: &CStr = c"trusted.berth.parent";

/// How often the groups above are made again when someone removes them meanwhile.
const ATTEMPTS: usize = 16;

/// Makes the group `path` and what is missing above it. Whether `path` was made now, rather than found.
pub(super) fn make(root: &Dir, path: &Path) -> Result<bool, CgroupError> {
    let mut attempts = ATTEMPTS;
    loop {
        match root.mkdir(path) {
            Ok(()) => return Ok(true),
            Err(Errno::EEXIST) => return Ok(false),
            // Nothing above it yet, or the removal of a neighbour took what was.
            Err(Errno::ENOENT) if attempts > 0 => attempts -= 1,
            Err(errno) => return Err(CgroupError::io("create", root.path().join(path), errno)),
        }
        make_above(root, path)?;
    }
}

fn make_above(root: &Dir, path: &Path) -> Result<(), CgroupError> {
    let mut above: Vec<&Path> = ancestors(path).collect();
    above.reverse();
    for group in above {
        match root.mkdir(group) {
            Ok(()) => mark(root, group),
            Err(Errno::EEXIST) => {}
            // Removed by a neighbour: the next attempt makes it again.
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(CgroupError::io("create", root.path().join(group), errno)),
        }
    }
    Ok(())
}

/// Removes the groups above `path` that were made for it or a neighbour and hold nothing any more.
pub(super) fn remove_above(root: &Dir, path: &Path) -> Result<(), CgroupError> {
    for group in ancestors(path) {
        if !is_marked(root, group) {
            return Ok(());
        }
        match root.remove(group) {
            // Somebody's processes or groups are in it.
            Err(CgroupError::Busy { .. }) => return Ok(()),
            done => done?,
        }
    }
    Ok(())
}

/// Removes the group `path`, which was made a moment ago, from `hierarchies`, with what is above it.
pub(super) fn unmake(hierarchies: &Hierarchies, path: &CgroupPath) {
    for hierarchy in hierarchies.all() {
        // Whatever made this necessary is the error to report.
        let _ = hierarchy.root.remove(path.as_path());
        let _ = remove_above(&hierarchy.root, path.as_path());
    }
}

/// The groups above `path`, from the nearest to the one below the root.
fn ancestors(path: &Path) -> impl Iterator<Item = &Path> {
    path.ancestors().skip(1).filter(|group| !group.as_os_str().is_empty())
}

/// Without privileges there is no mark, and the group stays.
fn mark(root: &Dir, group: &Path) {
    let marked = open(root, group).map(|dir| xattr::set(dir.as_fd(), MARK, b""));
    drop(marked);
}

fn is_marked(root: &Dir, group: &Path) -> bool {
    let path = CString::new(group.as_os_str().as_bytes()).unwrap_or_default();
    if let Ok(is_marked) = xattr::has_at(root.as_fd(), &path, MARK) {
        return is_marked;
    }
    open(root, group).is_ok_and(|dir| xattr::has(dir.as_fd(), MARK).unwrap_or(false))
}

fn open(root: &Dir, group: &Path) -> Result<OwnedFd, CgroupError> {
    root.open_file(group, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
}
