//! A tmpfs that begins as a copy of the directory it hides.
//!
//! Both trees are walked by descriptors, and no link of the image is followed. Files keep owner, mode and
//! times; what a tree of an image can hold besides files, directories and links is copied as far as mknod(2)
//! lets this process.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, readlinkat},
    sys::{
        stat::{FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmodat, fstatat, mkdirat, mknodat, utimensat},
        time::TimeSpec,
    },
    unistd::{Gid, Uid, fchownat, symlinkat},
};

/// As deep as a path can be; what is deeper is a tree made to exhaust the stack.
const MAX_DEPTH: usize = 256;

/// Copies what is in `from` into `to`, and gives `to` itself the looks of `from`.
pub(super) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let from = openat(from, ".", DIRECTORY, Mode::empty())?;
    contents(&from, to, MAX_DEPTH)?;
    let found = nix::sys::stat::fstat(&from)?;
    dress(to, Path::new("."), &found)
}

const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn contents(from: &OwnedFd, to: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
    let mut directory = Dir::from_fd(from.try_clone()?)?;
    for entry in directory.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            let name = name.to_string_lossy();
            one(from.as_fd(), to, Path::new(&*name), depth)?;
        }
    }
    Ok(())
}

fn one(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &Path, depth: usize) -> io::Result<()> {
    let found = fstatat(from, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let private = Mode::S_IRWXU;
    match found.st_mode & libc::S_IFMT {
        libc::S_IFDIR => {
            let depth = depth.checked_sub(1).ok_or(Errno::ELOOP)?;
            let source = openat(from, name, DIRECTORY, Mode::empty())?;
            mkdirat(to, name, private)?;
            contents(&source, openat(to, name, DIRECTORY, Mode::empty())?.as_fd(), depth)?;
        }
        libc::S_IFREG => {
            let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut source = File::from(openat(from, name, flags | OFlag::O_NONBLOCK, Mode::empty())?);
            let create = flags | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
            io::copy(&mut source, &mut File::from(openat(to, name, create, private)?))?;
        }
        libc::S_IFLNK => symlinkat(readlinkat(from, name)?.as_os_str(), to, name)?,
        kind => mknodat(to, name, SFlag::from_bits_retain(kind), private, found.st_rdev)?,
    }
    dress(to, name, &found)
}

/// Owner first: changing it takes set-user-id bits away.
fn dress(at: BorrowedFd<'_>, name: &Path, as_in: &libc::stat) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(as_in.st_uid), Gid::from_raw(as_in.st_gid));
    fchownat(at, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if as_in.st_mode & libc::S_IFMT != libc::S_IFLNK {
        let mode = Mode::from_bits_truncate(as_in.st_mode);
        fchmodat(at, name, mode, FchmodatFlags::FollowSymlink)?;
    }
    let (accessed, modified) = (
        TimeSpec::new(as_in.st_atime, as_in.st_atime_nsec),
        TimeSpec::new(as_in.st_mtime, as_in.st_mtime_nsec),
    );
    Ok(utimensat(at, name, &accessed, &modified, UtimensatFlags::NoFollowSymlink)?)
}
