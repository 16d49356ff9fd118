//! How the kernel shares processors and disks out to a process.
//!
//! Each call takes the process's id, 0 being the caller: what takes privileges of the initial user namespace
//! is done to a process from outside of it.

use std::io;

/// A scheduling policy and its parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Scheduler {
    /// SCHED_*.
    pub policy: u32,
    /// SCHED_FLAG_*.
    pub flags: u64,
    /// For the ordinary policies.
    pub nice: i32,
    /// For the real-time policies.
    pub priority: u32,
    /// For SCHED_DEADLINE, in nanoseconds, as the next two.
    pub runtime: u64,
    /// Of each period, when the runtime has to have been given.
    pub deadline: u64,
    /// How often.
    pub period: u64,
}

/// `struct sched_attr` in its first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Sets the policy and its parameters.
pub fn set_scheduler(pid: i32, scheduler: Scheduler) -> io::Result<()> {
    let Scheduler { policy, flags, nice, priority, runtime, deadline, period } = scheduler;
    let size = size_of::<Attributes>() as u32;
    let attributes = Attributes { size, policy, flags, nice, priority, runtime, deadline, period };
    let no_flags: libc::c_uint = 0;
    // SAFETY: the kernel reads as many bytes of the structure as its first field says, which is its size.
    super::check(unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const attributes, no_flags) })?;
    Ok(())
}

/// Keeps the process on the processors whose bits are set in `mask`.
pub fn set_affinity(pid: i32, mask: &[u64]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as said; bit N of the 64-bit words is processor N on every
    // little-endian machine and, the words being of its own size, on the big-endian ones.
    super::check(unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, pid, size_of_val(mask), mask.as_ptr())
    })?;
    Ok(())
}

/// Sets the I/O priority: a class in the bits from 13 on, a level in those below.
pub fn set_io_priority(pid: i32, priority: u16) -> io::Result<()> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    let priority = libc::c_int::from(priority);
    // SAFETY: takes integers only.
    super::check(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, pid, priority) })?;
    Ok(())
}

/// From which memory nodes this thread, and what it executes, gets its pages: MPOL_* with its flags.
pub fn set_memory_policy(mode: i32, nodes: &[u64]) -> io::Result<()> {
    let (mask, bits) = match nodes {
        [] => (std::ptr::null(), 0),
        // The kernel counts one bit less than it is told.
        nodes => (nodes.as_ptr(), nodes.len() as u64 * 64 + 1),
    };
    // SAFETY: the kernel reads `bits - 1` bits of the mask, which the slice has.
    super::check(unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) })?;
    Ok(())
}
