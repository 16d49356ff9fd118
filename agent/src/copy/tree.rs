//! Lookups that cannot leave the shared tree.
//!
//! Every one is an openat2 with RESOLVE_BENEATH: links inside the tree may be followed, but none that leads out of
//! it, and none of procfs (CVE-2026-41326: a link made by one copy, followed out of the tree by the next). The last
//! component is never looked up: what is done to it is done by name in its opened directory.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::stat::{Mode, fchmod, mkdirat},
};
use rustjail::lookup::open_within;

const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_PATH).union(OFlag::O_CLOEXEC);

/// Opens the tree's root, making what is missing of it. No component may be a link.
pub(super) fn root(path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(DIRECTORY).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(AT_FDCWD, path, how) {
        Err(Errno::ENOENT) => {}
        result => return Ok(result?),
    }
    std::fs::create_dir_all(path)?;
    Ok(openat2(AT_FDCWD, path, how)?)
}

/// Opens directory `path` below `root`, making what is missing with the permissions `mode`.
pub(super) fn directories(root: OwnedFd, path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    match open(&root, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    let (mut reached, mut at) = (PathBuf::new(), root.try_clone()?);
    for name in path {
        reached.push(name);
        at = match open(&root, &reached) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(&at, name, mode)?;
                open(&root, &reached)?
            }
            found => found?,
        };
    }
    Ok(at)
}

fn open(root: &impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return root.as_fd().try_clone_to_owned();
    }
    let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    Ok(open_within(root, path, DIRECTORY, beneath)?)
}

/// Makes one directory, whatever the umask; that somebody else has just made it is as good.
fn make(parent: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<()> {
    match mkdirat(parent, name, mode) {
        Err(Errno::EEXIST) => return Ok(()),
        result => result?,
    }
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let made = openat(parent, name, flags, Mode::empty())?;
    Ok(fchmod(made, mode)?)
}
