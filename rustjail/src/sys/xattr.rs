//! Extended attributes of open files.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Sets an attribute; `file` is not an O_PATH descriptor.
pub fn set(file: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: both pointers are valid for the lengths given, and the kernel only reads there.
    let result =
        unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    super::check(result.into()).map(drop)
}

/// Whether the file has the attribute.
pub fn has(file: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    // SAFETY: with a size of 0 the kernel writes nothing, so that the null pointer is not used.
    let result = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), std::ptr::null_mut(), 0) };
    match super::check(result as libc::c_long) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(false),
        Err(error) => Err(error),
    }
}
