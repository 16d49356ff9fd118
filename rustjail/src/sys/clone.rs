//! clone3(2).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Start in the cgroup2 directory that `clone_args.cgroup` names (`linux/sched.h`; musl's headers lack it).
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which of the two processes a return from [`clone3`] is in.
#[derive(Debug)]
pub enum Cloned {
    /// The new one.
    Child,
    /// The caller, with the child's number in the caller's PID namespace and a descriptor of it.
    Parent(i32, OwnedFd),
}

/// Makes a process that goes on from here with a copy of everything, as fork does, in the new namespaces
/// `flags` (CLONE_NEW*) and the cgroup `into`. `sibling` makes it a child of the caller's parent.
///
/// A caller with threads is refused: locks that the others hold would never be released in the child.
pub fn clone3(flags: u64, into: Option<BorrowedFd<'_>>, sibling: bool) -> io::Result<Cloned> {
    require_single_thread()?;
    let mut pidfd: libc::c_int = -1;
    // SAFETY: clone_args is plain integers, for which all zeroes is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    if sibling {
        // The kernel takes the exit signal from the caller then, and refuses one in the arguments.
        args.flags |= libc::CLONE_PARENT as u64;
    } else {
        args.exit_signal = libc::SIGCHLD as u64;
    }
    if let Some(cgroup) = into {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: no memory is shared (no CLONE_VM) and no stack is given, so the child returns here on its own
    // copy; `args` and `pidfd` outlive the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match super::check(pid)? {
        0 => Ok(Cloned::Child),
        // SAFETY: the kernel has stored a new descriptor there, which nobody else knows.
        pid => Ok(Cloned::Parent(pid as i32, unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// The kernel "unshares" a thread group from a process that has none, and refuses one that does: the cheapest
/// way to ask. A process that is alone cannot stop being so before its own next call.
fn require_single_thread() -> io::Result<()> {
    // SAFETY: takes an integer only, and changes nothing.
    match super::check(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_THREAD) }) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "the calling process has threads, and their locks would stay locked in the new one for ever",
        )),
        result => result.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_refused() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        assert_eq!(clone3(0, None, false).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(go);
        assert!(other.join().unwrap().is_err());
    }
}
