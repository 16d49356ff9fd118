//! Capability sets, as masks with bit N for capability N.

use std::{ffi::c_ulong, io};

/// `_LINUX_CAPABILITY_VERSION_3`: two 32-bit words a set.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The three sets that capget(2) and capset(2) move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sets {
    /// What permission checks look at.
    pub effective: u64,
    /// What may be made effective.
    pub permitted: u64,
    /// What a file with inheritable capabilities keeps over execve.
    pub inheritable: u64,
}

/// This thread's sets.
pub fn get() -> io::Result<Sets> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 fills exactly two data elements.
    super::check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    let [low, high] = data;
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    Ok(Sets {
        effective: join(low.effective, high.effective),
        permitted: join(low.permitted, high.permitted),
        inheritable: join(low.inheritable, high.inheritable),
    })
}

/// Replaces this thread's sets.
pub fn set(sets: Sets) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let half = |shift: u32| Data {
        effective: (sets.effective >> shift) as u32,
        permitted: (sets.permitted >> shift) as u32,
        inheritable: (sets.inheritable >> shift) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 reads exactly two data elements.
    super::check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })?;
    Ok(())
}

/// Drops every capability outside `keep` from the bounding set.
pub fn limit_bounding(keep: u64) -> io::Result<()> {
    for capability in (0..64).filter(|bit| keep & (1 << bit) == 0) {
        match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            // One beyond the kernel's last.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            result => result?,
        }
    }
    Ok(())
}

/// Makes `mask` the ambient set; each must be permitted and inheritable.
pub fn set_ambient(mask: u64) -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as c_ulong, 0)?;
    for capability in (0..64).filter(|bit| mask & (1 << bit) != 0) {
        prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as c_ulong, capability)?;
    }
    Ok(())
}

fn prctl(option: libc::c_int, first: c_ulong, second: c_ulong) -> io::Result<()> {
    let zero: c_ulong = 0;
    // SAFETY: the options used here take integers only.
    super::check(unsafe { libc::prctl(option, first, second, zero, zero) }.into())?;
    Ok(())
}
