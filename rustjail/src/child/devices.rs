//! Device nodes, and the links every program expects in `/dev`.
//!
//! The directory of each node is opened without following links: a `/dev` that the image ships as a link must
//! not have nodes made, or existing files linked, where it points (CVE-2026-41579).

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, open, openat, readlinkat},
    sys::stat::{Mode, SFlag, fstat, fstatat, makedev, mknodat},
    unistd::{Gid, Uid, UnlinkatFlags, fchownat, symlinkat, unlinkat},
};

use super::{
    step::At,
    tree::{Links, Missing, Tree},
};
use crate::{
    plan::{Device, DeviceKind, Root},
    sync::StepError,
    sys::mount,
};

const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Makes all of them.
pub(super) fn make(root: &Root, tree: &Tree<'_>) -> Result<(), StepError> {
    let mut opened: Option<(&Path, _)> = None;
    for device in &root.devices {
        let parent = device.path.parent().unwrap_or(Path::new("/"));
        // Nearly all are in /dev, one after another.
        let directory = match opened.take_if(|(path, _)| *path == parent) {
            Some((_, fd)) => fd,
            None => tree.ensure(parent, Missing::Directory, Links::Refuse)?,
        };
        node(device, directory.as_fd()).at("make the device", &device.path)?;
        opened = Some((parent, directory));
    }
    if !root.dev_links {
        return Ok(());
    }
    let dev = tree.ensure(Path::new("/dev"), Missing::Directory, Links::Refuse)?;
    LINKS.iter().try_for_each(|(name, target)| {
        link(dev.as_fd(), name, target).at("make the link", Path::new("/dev").join(name))
    })
}

fn node(device: &Device, directory: BorrowedFd<'_>) -> io::Result<()> {
    let name = device.path.file_name().map(Path::new).ok_or(Errno::EINVAL)?;
    let number = makedev(device.major.into(), device.minor.into());
    match mknodat(directory, name, kind(device), Mode::from_bits_retain(device.mode), number) {
        Ok(()) => {}
        // Already there, in the image or from a mount: good if it is the same device.
        Err(Errno::EEXIST) => return same_node(device, directory, name),
        // In a user namespace no device can be made, but the host's can be bound.
        Err(Errno::EPERM) => return bind_host_node(device, directory, name),
        Err(errno) => return Err(errno.into()),
    }
    if (device.uid, device.gid) != (0, 0) {
        let (uid, gid) = (Uid::from_raw(device.uid), Gid::from_raw(device.gid));
        fchownat(directory, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn same_node(device: &Device, directory: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    let found = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if is(device, &found) { Ok(()) } else { Err(Errno::EEXIST.into()) }
}

fn bind_host_node(device: &Device, directory: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    let place = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let host = open(&device.path, place, Mode::empty())?;
    if !is(device, &fstat(&host)?) {
        return Err(Errno::EPERM.into());
    }
    let copy = mount::clone_tree(host.as_fd(), false)?;
    let create = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(directory, name, create, Mode::from_bits_retain(0o644))?;
    let target = openat(directory, name, place, Mode::empty())?;
    mount::attach(copy.as_fd(), target.as_fd())
}

fn is(device: &Device, found: &libc::stat) -> bool {
    let number = makedev(device.major.into(), device.minor.into());
    found.st_mode & libc::S_IFMT == kind(device).bits()
        && (device.kind == DeviceKind::Fifo || found.st_rdev == number)
}

fn kind(device: &Device) -> SFlag {
    match device.kind {
        DeviceKind::Block => SFlag::S_IFBLK,
        DeviceKind::Character => SFlag::S_IFCHR,
        DeviceKind::Fifo => SFlag::S_IFIFO,
    }
}

fn link(dev: BorrowedFd<'_>, name: &str, target: &str) -> nix::Result<()> {
    match symlinkat(target, dev, name) {
        Err(Errno::EEXIST) => {}
        result => return result,
    }
    if readlinkat(dev, name).is_ok_and(|found| found == target) {
        return Ok(());
    }
    // The image's own, which would lead to the host's terminals or to nowhere.
    unlinkat(dev, name, UnlinkatFlags::NoRemoveDir)?;
    symlinkat(target, dev, name)
}
