//! The only unsafe code of Berth: one file per family of system calls, owned and borrowed descriptors in
//! and out, a SAFETY line on each block; and one that copies memory.
//!
//! What `nix` wraps safely is used from there. What is here either has no wrapper, or has one that hands out
//! bare descriptor numbers, or is broadcast to all threads by the C library (`setuid` and its relatives).
#![allow(unsafe_code)]

use std::{
    ffi::{CString, c_int, c_long},
    io,
    os::fd::{FromRawFd, OwnedFd},
};

pub mod accept;
pub mod binary;
pub mod bpf;
pub mod caps;
pub mod clone;
#[cfg(target_arch = "x86_64")]
mod copy;
pub mod device_mapper;
pub mod dirents;
pub mod fds;
pub mod identity;
pub mod keyring;
pub mod memfd;
pub mod mount;
pub mod net;
pub mod nsfs;
pub mod pidfd;
pub mod pipe;
pub mod process;
pub mod pty;
pub mod random;
pub mod resize;
pub mod sched;
pub mod scm;
pub mod seccomp;
pub mod swap;
pub mod wait;
pub mod xattr;

/// The result of a system call that answers -1 and sets errno.
fn check(result: c_long) -> io::Result<c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The descriptor that a system call has just made for this process.
fn owned(result: c_long) -> io::Result<OwnedFd> {
    let fd = check(result)? as c_int;
    // SAFETY: the kernel has just returned this number as a new descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `text` as the kernel takes it; a NUL inside is EINVAL.
fn c_string(text: &[u8]) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
