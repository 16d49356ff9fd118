//! The files of an image while its layers are put into them.
//!
//! A path of a layer is looked up by openat2 as if the tree were the root directory, so no link in it, absolute or
//! with `..`, leads out; what is made is made in an open directory, under one name. A tree is never deeper than
//! [`MAX_DEPTH`], so that it can always be taken down again.
//!
//! From the second layer on the tree is an overlay over the layers below, of which only the writable directory is
//! kept: the kernel does what a whiteout means.

use std::{
    ffi::OsStr,
    fs, io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Component, Path},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, ResolveFlag},
    libc,
    sys::{
        stat::{FileStat, Mode, fstat, fstatat, futimens, mkdirat},
        time::TimeSpec,
    },
};
use rustjail::lookup::open_within;

use crate::storage::place;

/// Of directories in each other.
const MAX_DEPTH: usize = 256;
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// See the module.
#[derive(Debug)]
pub(super) struct Tree {
    /// All layers.
    root: OwnedFd,
    /// What only the present layer has; `None` where there is no other.
    upper: Option<OwnedFd>,
}

impl Tree {
    pub(super) fn new(root: OwnedFd, upper: Option<OwnedFd>) -> Self {
        Self { root, upper }
    }

    /// The directory `path`, or none.
    pub(super) fn find(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match look_up(&self.root, path, DIRECTORY, ResolveFlag::RESOLVE_IN_ROOT) {
            Err(Errno::ENOENT) => Ok(None),
            directory => {
                let directory = directory?;
                let depth = fs::read_link(place::by_descriptor(&directory))?.components().count();
                match depth > MAX_DEPTH {
                    true => Err(Errno::ENAMETOOLONG.into()),
                    false => Ok(Some(directory)),
                }
            }
        }
    }

    /// The directory `path`; what is missing of it is made.
    pub(super) fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        if let Some(directory) = self.find(path)? {
            return Ok(directory);
        }
        let mut directory = self.find(Path::new(""))?.ok_or(Errno::ENOENT)?;
        let mut so_far = std::path::PathBuf::new();
        for name in path.components() {
            so_far.push(name);
            directory = match self.find(&so_far)? {
                Some(next) => next,
                None => {
                    let mode = Mode::from_bits_retain(0o755);
                    keeping_time(&directory, || mkdirat(&directory, Path::new(name.as_os_str()), mode))?;
                    self.find(&so_far)?.ok_or(Errno::ENOENT)?
                }
            };
        }
        Ok(directory)
    }

    /// Takes away `name` from `directory`, if it is there.
    pub(super) fn remove(&self, directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
        place::remove(directory, Path::new(name))
    }

    /// Hides what the layers below have as `name` in `directory`; what the present one has stays.
    pub(super) fn hide(&self, directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match self.own(directory)? {
            None => Ok(()),
            Some(own) => hide(directory, own.as_ref(), Path::new(name)),
        }
    }

    /// Hides all that the layers below have in `directory`.
    pub(super) fn hide_all(&self, directory: &OwnedFd) -> io::Result<()> {
        match self.own(directory)? {
            None => Ok(()),
            Some(own) => hide_all(directory, own.as_ref()),
        }
    }

    /// What the present layer has of `directory`. The outer `None`: there is no layer below.
    fn own(&self, directory: &OwnedFd) -> io::Result<Option<Option<OwnedFd>>> {
        let Some(upper) = &self.upper else { return Ok(None) };
        let root = fs::read_link(place::by_descriptor(&self.root))?;
        let path = fs::read_link(place::by_descriptor(directory))?;
        let path = path.strip_prefix(root).map_err(io::Error::other)?;
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
        match look_up(upper, path, DIRECTORY, resolve) {
            Err(Errno::ENOENT) => Ok(Some(None)),
            own => Ok(Some(Some(own?))),
        }
    }
}

fn look_up(from: &OwnedFd, path: &Path, flags: OFlag, resolve: ResolveFlag) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    open_within(from, path, flags, resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS)
}

/// Puts the directory's time back after `change`.
pub(super) fn keeping_time<E: From<Errno>>(
    directory: &OwnedFd,
    change: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let before = fstat(directory)?;
    change()?;
    let accessed = TimeSpec::new(before.st_atime, before.st_atime_nsec);
    let modified = TimeSpec::new(before.st_mtime, before.st_mtime_nsec);
    Ok(futimens(directory, &accessed, &modified)?)
}

/// What is at `name` in `directory`, if anything.
pub(super) fn look(directory: &OwnedFd, name: &Path) -> io::Result<Option<FileStat>> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => Ok(None),
        found => Ok(Some(found?)),
    }
}

pub(super) fn is_directory(found: &FileStat) -> bool {
    found.st_mode & libc::S_IFMT == libc::S_IFDIR
}

/// A directory in `directory`, which is no link.
pub(super) fn enter(directory: &OwnedFd, name: &Path) -> io::Result<OwnedFd> {
    Ok(look_up(directory, name, DIRECTORY, ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS)?)
}

fn hide(directory: &OwnedFd, own: Option<&OwnedFd>, name: &Path) -> io::Result<()> {
    let present = own.map(|own| look(own, name)).transpose()?.flatten();
    match present {
        Some(present) if is_directory(&present) => {
            let own = own.map(|own| enter(own, name)).transpose()?;
            hide_all(&enter(directory, name)?, own.as_ref())
        }
        // The kernel's own whiteout is of nobody's layer, but already there.
        Some(_) => Ok(()),
        None => place::remove(directory, name),
    }
}

fn hide_all(directory: &OwnedFd, own: Option<&OwnedFd>) -> io::Result<()> {
    for name in place::names(directory)? {
        hide(directory, own, Path::new(OsStr::from_bytes(name.as_bytes())))?;
    }
    Ok(())
}

/// The directory and the name of `path`, of which a layer wants something made; of the root itself the name is
/// empty. `None` is a path that leads out.
pub(super) fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let path = path.strip_prefix("/").unwrap_or(path);
    if path.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return None;
    }
    Some((path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_out_are_none() {
        let parts = |path: &'static str| {
            split(Path::new(path)).map(|(parent, name)| (parent.to_str().unwrap(), name.to_str().unwrap()))
        };
        assert_eq!(parts("a/b/c"), Some(("a/b", "c")));
        assert_eq!(parts("/a//b/"), Some(("a", "b")));
        assert_eq!(parts("./a"), Some((".", "a")));
        for root in ["./", "/", ".", ""] {
            assert_eq!(parts(root).unwrap().1, "", "{root}");
        }
        for out in ["..", "../a", "a/../..", "/..", "a/.."] {
            assert_eq!(parts(out), None, "{out}");
        }
    }
}
