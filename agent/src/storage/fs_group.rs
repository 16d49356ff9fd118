//! Giving a volume's files to a group, as Kubernetes' fsGroup asks for it.
//!
//! Files become readable and, unless the volume is read-only, writable for the group; directories searchable,
//! and new files in them inherit the group. Symbolic links are left alone, and no other mount is entered.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, openat},
    libc,
    sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat},
    unistd::{Gid, fchownat},
};

use super::{
    error::{Result, failed_to},
    place,
    request::FsGroup,
};

const READ_WRITE: u32 = 0o660;
const READ: u32 = 0o440;
const DIRECTORY: u32 = 0o2110;

/// Applies `group` to everything below `root`.
pub(super) fn apply(root: &Path, group: FsGroup, read_only: bool) -> Result<()> {
    let bits = if read_only { READ } else { READ_WRITE };
    let change = || -> io::Result<()> {
        let place = place::open(root)?;
        let found = fstat(&place)?;
        if group.on_root_mismatch && fits(&found, group.id, bits) {
            return Ok(());
        }
        if is_directory(&found) {
            below(&place, found.st_dev, group.id, bits)?;
        }
        // The root last: with it right, the next mount may skip the rest.
        own(&place, &found, group.id, bits)
    };
    change().map_err(failed_to(|| format!("give {} to the group {}", root.display(), group.id)))
}

fn is_directory(found: &FileStat) -> bool {
    found.st_mode & libc::S_IFMT == libc::S_IFDIR
}

fn wanted(found: &FileStat, bits: u32) -> u32 {
    if is_directory(found) { bits | DIRECTORY } else { bits }
}

fn fits(root: &FileStat, group: u32, bits: u32) -> bool {
    root.st_gid == group && root.st_mode & wanted(root, bits) == wanted(root, bits)
}

/// `file` was opened by O_PATH, so it is what was looked at and no link that took its place.
fn own(file: &OwnedFd, found: &FileStat, group: u32, bits: u32) -> io::Result<()> {
    fchownat(file, c"", None, Some(Gid::from_raw(group)), AtFlags::AT_EMPTY_PATH)?;
    let mode = Mode::from_bits_retain(found.st_mode & 0o7777 | wanted(found, bits));
    Ok(fchmodat(AT_FDCWD, &place::by_descriptor(file), mode, FchmodatFlags::FollowSymlink)?)
}

/// Without recursion: how deep a volume is was not ours to choose. Each level costs one descriptor.
fn below(root: &OwnedFd, device: u64, group: u32, bits: u32) -> io::Result<()> {
    let mut stack = vec![(root.try_clone()?, place::names(root)?)];
    while let Some((directory, left)) = stack.last_mut() {
        let Some(name) = left.pop() else {
            stack.pop();
            continue;
        };
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = match openat(directory.as_fd(), name.as_c_str(), flags, Mode::empty()) {
            Err(Errno::ENOENT) => continue,
            file => file?,
        };
        let found = fstat(&file)?;
        if found.st_mode & libc::S_IFMT == libc::S_IFLNK || found.st_dev != device {
            continue;
        }
        own(&file, &found, group, bits)?;
        if is_directory(&found) {
            let inside = place::names(&file)?;
            stack.push((file, inside));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    };

    use super::*;

    #[test]
    fn everything_but_links_is_given() {
        let dir = std::env::temp_dir().join(format!("berth-fsgroup-{}", std::process::id()));
        fs::create_dir_all(dir.join("v/a/b")).unwrap();
        fs::write(dir.join("v/a/file"), "").unwrap();
        fs::set_permissions(dir.join("v/a/file"), PermissionsExt::from_mode(0o4700)).unwrap();
        fs::write(dir.join("outside"), "").unwrap();
        fs::set_permissions(dir.join("outside"), PermissionsExt::from_mode(0o600)).unwrap();
        symlink("../outside", dir.join("v/link")).unwrap();
        let is = |path: &str| {
            let found = fs::symlink_metadata(dir.join(path)).unwrap();
            (found.gid(), found.mode() & 0o7777)
        };
        let group = FsGroup { id: 4711, on_root_mismatch: false };
        apply(&dir.join("v"), group, false).unwrap();
        assert_eq!((is("v"), is("v/a/b")), ((4711, 0o2775), (4711, 0o2775)));
        assert_eq!(is("v/a/file"), (4711, 0o4760));
        assert_eq!(is("outside"), (0, 0o600));
        fs::set_permissions(dir.join("v/a"), PermissionsExt::from_mode(0o700)).unwrap();
        apply(&dir.join("v"), FsGroup { on_root_mismatch: true, ..group }, false).unwrap();
        assert_eq!(is("v/a"), (4711, 0o700), "the root was right, so nothing is changed");
        apply(&dir.join("v"), FsGroup { id: 12, on_root_mismatch: true }, true).unwrap();
        assert_eq!((is("v/a"), is("v/a/file")), ((12, 0o2750), (12, 0o4760)));
        fs::remove_dir_all(dir).unwrap();
    }
}
