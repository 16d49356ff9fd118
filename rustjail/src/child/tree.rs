//! Paths beneath a container's root.
//!
//! Every lookup is one openat2 that treats the root as `/` and refuses the links of procfs, so whatever the
//! image or a neighbour that shares a volume does with links, the descriptor that comes out lies beneath the
//! root (CVE-2021-30465, CVE-2024-45310). The descriptor, never the path, is then worked on.
//!
//! Whoever shares the root file system can also exchange the directory that a mount is on: the mount goes with it,
//! and what is found at the path is something else. So what is below `/proc`, `/sys` and `/dev` is looked up from
//! the mount that was made there, once there is one.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, ResolveFlag, openat, readlinkat},
    sys::{
        stat::{Mode, mkdirat},
        statfs::{FsType, PROC_SUPER_MAGIC, SYSFS_MAGIC, TMPFS_MAGIC, fstatfs},
    },
};

use super::step::At;
use crate::{lookup::open_within, sync::StepError};

/// As many links as the kernel itself follows in one lookup.
const MAX_LINKS: usize = 40;

/// What a missing path is made as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Directory,
    File,
}

/// Whether symbolic links in a path are followed (beneath the root) or an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    Follow,
    /// But for the last part of the path, which is what is meant, should it be one.
    FollowAbove,
    /// For the places a whole file tree's meaning hangs on: `/proc`, `/sys`, `/dev` (CVE-2019-19921,
    /// CVE-2026-41579).
    Refuse,
}

/// The places whose file systems are the kernel's word, and which those are.
const KEPT: [(&str, FsType); 3] = [("/proc", PROC_SUPER_MAGIC), ("/sys", SYSFS_MAGIC), ("/dev", TMPFS_MAGIC)];

/// A container's root directory.
#[derive(Debug)]
pub(super) struct Tree<'fd> {
    pub(super) root: BorrowedFd<'fd>,
    /// Mounts that were put into it, by their places.
    kept: Vec<(&'static str, OwnedFd)>,
}

impl<'fd> Tree<'fd> {
    pub(super) fn new(root: BorrowedFd<'fd>) -> Self {
        Self { root, kept: Vec::new() }
    }

    /// From now on what is below `path` is looked up in `mount`, which was put there, if that is the file system
    /// that belongs there. Without one, the place is the image's again.
    pub(super) fn keep(&mut self, path: &Path, mount: Option<OwnedFd>) -> io::Result<()> {
        let Some((place, file_system)) = KEPT.into_iter().find(|(place, _)| path == Path::new(place)) else {
            return Ok(());
        };
        self.kept.retain(|(other, _)| *other != place);
        if let Some(mount) = mount
            && fstatfs(&mount)?.filesystem_type() == file_system
        {
            self.kept.push((place, mount));
        }
        Ok(())
    }

    /// Where the lookup of `path` begins, and what is left of it from there.
    fn start_of<'a>(&'a self, path: &'a Path) -> (BorrowedFd<'a>, &'a Path) {
        let below =
            |(place, mount): &'a (&str, OwnedFd)| Some((mount.as_fd(), path.strip_prefix(place).ok()?));
        match self.kept.iter().find_map(below) {
            Some((mount, rest)) if rest.as_os_str().is_empty() => (mount, Path::new(".")),
            Some(found) => found,
            None => (self.root, path),
        }
    }

    /// Opens what is there.
    pub(super) fn open(&self, path: impl AsRef<Path>, flags: OFlag, links: Links) -> io::Result<OwnedFd> {
        let mut resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        if links == Links::Refuse {
            resolve |= ResolveFlag::RESOLVE_NO_SYMLINKS;
        }
        let last = if links == Links::FollowAbove { OFlag::O_NOFOLLOW } else { OFlag::empty() };
        let (start, rest) = self.start_of(path.as_ref());
        Ok(open_within(start, rest, flags | last, resolve)?)
    }

    /// The place `path`, or `None` when there is none.
    pub(super) fn find(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match self.open(path, OFlag::O_PATH, Links::Follow) {
            Ok(fd) => Ok(Some(fd)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The place `path`, made with the directories above it when it is missing.
    pub(super) fn ensure(&self, path: &Path, missing: Missing, links: Links) -> Result<OwnedFd, StepError> {
        let step = match links {
            Links::Follow | Links::FollowAbove => "make beneath the root",
            Links::Refuse => "make beneath the root, where no symbolic link is allowed,",
        };
        self.ensure_within(path, missing, links, MAX_LINKS).at(step, path)
    }

    fn ensure_within(&self, path: &Path, missing: Missing, links: Links, left: usize) -> io::Result<OwnedFd> {
        match self.open(path, OFlag::O_PATH, links) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            result => return result,
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::ENOENT.into());
        };
        let above = if links == Links::FollowAbove { Links::Follow } else { links };
        let directory = self.ensure_within(parent, Missing::Directory, above, left)?;
        if fstatfs(&directory)?.filesystem_type() == PROC_SUPER_MAGIC {
            // Nothing can be made there, but /proc/self/fd/N may just have come to be: `directory` itself.
            return Err(Errno::ENOENT.into());
        }
        match make(directory.as_fd(), Path::new(name), missing) {
            Ok(fd) => Ok(fd),
            // A link to what is missing: images ship /etc/resolv.conf so. What it means, beneath the root, is made.
            Err(Errno::ELOOP) if links == Links::Follow && left > 0 => {
                let target = readlinkat(&directory, name)?;
                self.ensure_within(&parent.join(target), missing, links, left - 1)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Makes `name` in `directory` and opens it; ELOOP when it has become a symbolic link.
fn make(directory: BorrowedFd<'_>, name: &Path, missing: Missing) -> nix::Result<OwnedFd> {
    let place = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = match missing {
        Missing::Directory => {
            match mkdirat(directory, name, Mode::from_bits_retain(0o755)) {
                // Somebody else made it, or it is a link.
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
            openat(directory, name, place, Mode::empty())?
        }
        Missing::File => {
            let create = OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            openat(directory, name, create, Mode::from_bits_retain(0o644))?;
            openat(directory, name, place, Mode::empty())?
        }
    };
    let kind = nix::sys::stat::fstat(&fd)?.st_mode & libc::S_IFMT;
    if kind == libc::S_IFLNK { Err(Errno::ELOOP) } else { Ok(fd) }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("berth-tree-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("root")).unwrap();
        path
    }

    #[test]
    fn links_stay_beneath_the_root() {
        let base = scratch("links");
        let root = fs::File::open(base.join("root")).unwrap();
        let tree = Tree::new(root.as_fd());
        symlink("../../../outside", base.join("root/relative")).unwrap();
        symlink("/absolute", base.join("root/link")).unwrap();
        symlink("../run/resolv.conf", base.join("root/dangling")).unwrap();

        tree.ensure(Path::new("/relative/a"), Missing::Directory, Links::Follow).unwrap();
        tree.ensure(Path::new("/link/b/c"), Missing::File, Links::Follow).unwrap();
        tree.ensure(Path::new("/dangling"), Missing::File, Links::Follow).unwrap();

        assert!(!base.join("outside").exists());
        assert!(base.join("root/outside/a").is_dir());
        assert!(base.join("root/absolute/b/c").is_file());
        assert!(base.join("root/run/resolv.conf").is_file());
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn links_are_refused_where_asked() {
        let base = scratch("refused");
        let root = fs::File::open(base.join("root")).unwrap();
        let tree = Tree::new(root.as_fd());
        symlink("/elsewhere", base.join("root/proc")).unwrap();
        for path in ["/proc", "/proc/below"] {
            let error = tree.ensure(Path::new(path), Missing::Directory, Links::Refuse).unwrap_err();
            assert_eq!(error.errno, libc::ELOOP, "{path}");
        }
        assert!(!base.join("root/elsewhere").exists());
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn what_is_kept_has_to_be_the_file_system_of_its_place() {
        let base = scratch("kept");
        let root = fs::File::open(base.join("root")).unwrap();
        fs::create_dir(base.join("root/proc")).unwrap();
        fs::write(base.join("root/proc/version"), "fake").unwrap();
        let real = || Some(fs::File::open("/proc").unwrap().into());
        let found = |tree: &Tree<'_>, path: &str| {
            let file = tree.open(path, OFlag::O_PATH, Links::Follow).unwrap();
            fstatfs(&file).unwrap().filesystem_type() == PROC_SUPER_MAGIC
        };
        let mut tree = Tree::new(root.as_fd());
        assert!(!found(&tree, "/proc/version"));
        tree.keep(Path::new("/tmp"), real()).unwrap();
        assert!(!found(&tree, "/proc/version"));
        tree.keep(Path::new("/proc"), real()).unwrap();
        assert!(found(&tree, "/proc/version") && found(&tree, "/proc"));
        tree.keep(Path::new("/proc"), Some(root.try_clone().unwrap().into())).unwrap();
        assert!(!found(&tree, "/proc/version"));
        tree.keep(Path::new("/proc"), real()).unwrap();
        tree.keep(Path::new("/proc"), None).unwrap();
        assert!(!found(&tree, "/proc/version"));
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_circle_of_links_ends() {
        let base = scratch("circle");
        let root = fs::File::open(base.join("root")).unwrap();
        symlink("b", base.join("root/a")).unwrap();
        symlink("a", base.join("root/b")).unwrap();
        let error =
            Tree::new(root.as_fd()).ensure(Path::new("/a/x"), Missing::Directory, Links::Follow).unwrap_err();
        assert_eq!(error.errno, libc::ELOOP);
        fs::remove_dir_all(base).unwrap();
    }
}
