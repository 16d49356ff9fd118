//! What the kernel says of a namespace descriptor.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// `_IO(0xb7, 0x3)` of `linux/nsfs.h`.
const NS_GET_NSTYPE: libc::Ioctl = 0xb703 as libc::Ioctl;

/// The CLONE_NEW* bit of the namespace that `fd` is a descriptor of; ENOTTY for anything else.
pub fn kind(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: the request takes no argument.
    let kind = super::check(unsafe { libc::ioctl(fd.as_raw_fd(), NS_GET_NSTYPE) }.into())?;
    Ok(kind as u64)
}
