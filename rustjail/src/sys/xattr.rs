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

/// getxattrat(2), which neither C library knows: Linux 6.13, and the same number on every architecture.
const SYS_GETXATTRAT: libc::c_long = 464;

/// Whether the file `path` below `dir`, which may be an O_PATH descriptor, has the attribute. ENOSYS before Linux 6.13.
pub fn has_at(dir: BorrowedFd<'_>, path: &CStr, name: &CStr) -> io::Result<bool> {
    // No room for a value, of no size and without flags: only its length is answered.
    let nowhere = [0_u64; 2];
    // SAFETY: the texts end with a NUL, and with a size of 0 the kernel writes nothing.
    let result = unsafe {
        libc::syscall(
            SYS_GETXATTRAT,
            dir.as_raw_fd(),
            path.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            name.as_ptr(),
            nowhere.as_ptr(),
            size_of_val(&nowhere),
        )
    };
    is_there(result)
}

/// Whether the file has the attribute.
pub fn has(file: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    // SAFETY: with a size of 0 the kernel writes nothing, so that the null pointer is not used.
    let result = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), std::ptr::null_mut(), 0) };
    is_there(result as libc::c_long)
}

fn is_there(result: libc::c_long) -> io::Result<bool> {
    match super::check(result) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(false),
        Err(error) => Err(error),
    }
}
