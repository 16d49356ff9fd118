//! Whom this thread acts as. The C library's versions stop and change every thread by a signal; a process
//! between clone and execve has one thread and wants exactly the system call.

use std::io;

/// Sets the real, effective and saved user id.
pub fn setuid(uid: u32) -> io::Result<()> {
    // SAFETY: takes integers only.
    super::check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })?;
    Ok(())
}

/// Sets the real, effective and saved group id.
pub fn setgid(gid: u32) -> io::Result<()> {
    // SAFETY: takes integers only.
    super::check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    Ok(())
}

/// Sets the supplementary groups.
pub fn setgroups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel reads as many 32-bit ids as the slice holds.
    super::check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    Ok(())
}
