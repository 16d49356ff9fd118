//! seccomp(2).

use std::{io, os::fd::OwnedFd};

/// Installs a filter on the caller: `program` is one `struct sock_filter` in 8 native-endian bytes each,
/// `flags` are SECCOMP_FILTER_FLAG_*. The caller has no_new_privs or CAP_SYS_ADMIN. With NEW_LISTENER, the
/// listener (close-on-exec).
pub fn install(program: &[[u8; 8]], flags: u32) -> io::Result<Option<OwnedFd>> {
    let filters: Vec<libc::sock_filter> = program
        .iter()
        .map(|&[c0, c1, jt, jf, k0, k1, k2, k3]| libc::sock_filter {
            code: u16::from_ne_bytes([c0, c1]),
            jt,
            jf,
            k: u32::from_ne_bytes([k0, k1, k2, k3]),
        })
        .collect();
    let length = u16::try_from(filters.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len: length, filter: filters.as_ptr().cast_mut() };
    // SAFETY: the program points to `length` instructions, which the kernel only reads.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if u64::from(flags) & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0 {
        return super::owned(result).map(Some);
    }
    match super::check(result)? {
        0 => Ok(None),
        // With TSYNC: a thread that has another filter, by its id.
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}
