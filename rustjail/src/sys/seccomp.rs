//! seccomp(2).

use std::io;

/// Installs a filter on the caller: `program` is one `struct sock_filter` in 8 native-endian bytes each,
/// `flags` are SECCOMP_FILTER_FLAG_*. The caller has no_new_privs or CAP_SYS_ADMIN.
pub fn install(program: &[[u8; 8]], flags: u32) -> io::Result<()> {
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
    super::check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })?;
    Ok(())
}
