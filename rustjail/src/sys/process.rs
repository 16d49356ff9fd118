//! Attributes of the calling process that `nix` has no wrapper for.

use std::{
    convert::Infallible,
    ffi::{CStr, CString, OsString},
    io,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::ffi::OsStringExt,
    },
    path::PathBuf,
    ptr,
};

/// Ends the process at once: no destructors, no exit handlers, no flushing of streams that were copied from
/// the process it was cloned from.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(code) }
}

/// Gives every signal its default action and unblocks all of them. Ignored signals and the mask outlive
/// execve, so a program would otherwise start with those of its maker (Rust ignores SIGPIPE).
pub fn reset_signals() -> io::Result<()> {
    // The kernel's own structure, longer than any architecture's: SIG_DFL, no flags, the empty set. The C
    // library's sigaction would leave out the two signals it keeps for itself.
    let action = [0_u64; 8];
    let set_size = size_of::<u64>();
    for signal in 1..=64 {
        // Fails for SIGKILL and SIGSTOP only, which cannot have been changed.
        // SAFETY: installs no handler; the kernel reads less than the array holds.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), ptr::null_mut::<u64>(), set_size)
        };
    }
    let none = 0_u64;
    // SAFETY: the kernel reads as many bytes of the mask as said.
    super::check(unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            ptr::null_mut::<u64>(),
            set_size,
        )
    })?;
    Ok(())
}

/// Becomes the program `binary` with this process's environment. It may be an O_PATH descriptor.
pub fn execute_again(binary: BorrowedFd<'_>, arguments: &[CString]) -> io::Result<Infallible> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let pointers: Vec<_> = arguments.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
    // SAFETY: the path is empty, the pointers end with a null one, and nothing here changes the environment.
    let result = unsafe {
        let path = c"".as_ptr();
        libc::syscall(
            libc::SYS_execveat,
            binary.as_raw_fd(),
            path,
            pointers.as_ptr(),
            environ,
            libc::AT_EMPTY_PATH,
        )
    };
    // It returns only if it fails.
    Err(super::check(result).err().unwrap_or_else(|| io::ErrorKind::Other.into()))
}

/// Sets the limit `resource` (RLIMIT_*) of the process `pid`, 0 being the caller.
pub fn set_rlimit(pid: i32, resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = [soft, hard];
    // SAFETY: the kernel's rlimit64 is two 64-bit numbers, and a null old limit is not written.
    super::check(unsafe {
        libc::syscall(libc::SYS_prlimit64, pid, resource, limit.as_ptr(), ptr::null_mut::<u64>())
    })?;
    Ok(())
}

/// Sets the NIS domain name of this UTS namespace.
pub fn set_domainname(name: &str) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the text has.
    super::check(unsafe { libc::syscall(libc::SYS_setdomainname, name.as_ptr(), name.len()) })?;
    Ok(())
}

/// Sets the execution domain (PER_*).
pub fn set_personality(domain: u32) -> io::Result<()> {
    // SAFETY: takes an integer only.
    super::check(unsafe { libc::syscall(libc::SYS_personality, libc::c_ulong::from(domain)) })?;
    Ok(())
}

/// The working directory as the kernel sees it. The C library's version hides that it is outside the root,
/// which the kernel marks by a path that begins with "(unreachable)".
pub fn getcwd() -> io::Result<PathBuf> {
    let mut buffer = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: the kernel writes at most as many bytes as the buffer has, the last a NUL.
    super::check(unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) })?;
    let text = CStr::from_bytes_until_nul(&buffer).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(OsString::from_vec(text.to_bytes().to_vec()).into())
}
