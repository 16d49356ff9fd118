//! Looking up what a container is made of: its root file system and the sources of its bind mounts.
//!
//! A path is looked up once, as whoever wrote the configuration wrote it, links and all. Not so below a
//! directory whose contents others may change, such as a volume that another container writes to: there a link
//! is followed only as long as it stays in that directory, so that nobody who can put one there chooses what
//! of the machine a container gets to see.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

use crate::lookup::open_within;

/// What paths of the configuration are relative to, and which of them are not followed everywhere.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub bundle: &'a Path,
    pub confined: &'a [PathBuf],
}

impl Sources<'_> {
    /// Opens `path` as a place (O_PATH), with `flags` besides.
    pub fn open(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | flags;
        let trees = self.confined.iter().filter(|tree| path.starts_with(tree));
        match trees.max_by_key(|tree| tree.components().count()) {
            None => Ok(open(path, flags, Mode::empty())?),
            Some(tree) => open_in(tree, path, flags).map_err(|errno| match errno {
                Errno::EXDEV | Errno::ELOOP => io::Error::other(format!(
                    "a symbolic link on the way leads out of {}: copy what it leads to in there, or mount that itself",
                    tree.display()
                )),
                errno => errno.into(),
            }),
        }
    }
}

fn open_in(tree: &Path, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let inner = path.strip_prefix(tree).unwrap_or(path);
    let itself = inner.as_os_str().is_empty();
    let flags_of_tree = if itself { flags } else { OFlag::O_PATH | OFlag::O_CLOEXEC };
    let how = OpenHow::new().flags(flags_of_tree).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let tree = openat2(AT_FDCWD, tree, how)?;
    if itself {
        return Ok(tree);
    }
    open_within(&tree, inner, flags, ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS)
}
