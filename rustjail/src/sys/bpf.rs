//! bpf(2), as far as device rules of cgroup2 need it: programs of type CGROUP_DEVICE are loaded, attached
//! to a cgroup directory, listed and detached. Numbers are those of linux/bpf.h.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
};

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const PROG_QUERY: libc::c_int = 16;

const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const CGROUP_DEVICE: u32 = 6;

/// Every program attached to a group and to those above it must agree, and a nested runtime may add its own.
const F_ALLOW_MULTI: u32 = 1 << 1;

/// The kernel's own limit on programs attached to one cgroup with F_ALLOW_MULTI (BPF_CGROUP_MAX_PROGS).
const MAX_PROGRAMS: usize = 64;

const LICENSE: &CStr = c"Apache-2.0";

/// One instruction, `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    /// The instruction `code` on registers `destination` and `source`, which are 0 to 10.
    pub const fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        // Two bit fields of one byte, which a C compiler fills from the end that comes first in memory.
        let registers = if cfg!(target_endian = "little") {
            source << 4 | destination
        } else {
            destination << 4 | source
        };
        Self { code, registers, offset, immediate }
    }

    /// What [`Instruction::new`] was given, for an interpreter.
    #[cfg(test)]
    pub(crate) const fn parts(self) -> (u8, u8, u8, i16, i32) {
        let (low, high) = (self.registers & 15, self.registers >> 4);
        let (destination, source) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
        (self.code, destination, source, self.offset, self.immediate)
    }
}

#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    first: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct Query {
    target: u32,
    kind: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
}

#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

/// Has the kernel verify a device program and gives its descriptor.
pub fn load_device_program(program: &[Instruction]) -> io::Result<OwnedFd> {
    let instructions =
        u32::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut load = Load {
        kind: PROG_TYPE_CGROUP_DEVICE,
        instructions,
        first: program.as_ptr().addr() as u64,
        license: LICENSE.as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
    };
    program.as_ptr().expose_provenance();
    LICENSE.as_ptr().expose_provenance();
    // SAFETY: both addresses are of borrows that live across the call: `program`, with its length beside it,
    // and a terminated string; the kernel only reads them, and no log buffer is given.
    unsafe { new_fd(PROG_LOAD, &mut load) }
}

/// Attaches a program to a cgroup2 directory, beside those that are there.
pub fn attach_device_program(cgroup: impl AsFd, program: impl AsFd) -> io::Result<()> {
    attachment(PROG_ATTACH, cgroup, program, F_ALLOW_MULTI)
}

/// Undoes [`attach_device_program`].
pub fn detach_device_program(cgroup: impl AsFd, program: impl AsFd) -> io::Result<()> {
    attachment(PROG_DETACH, cgroup, program, 0)
}

/// The ids of the programs attached to this cgroup2 directory itself.
pub fn device_programs(cgroup: impl AsFd) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; MAX_PROGRAMS];
    let mut query = Query {
        target: number(&cgroup),
        kind: CGROUP_DEVICE,
        query_flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr().expose_provenance() as u64,
        count: MAX_PROGRAMS as u32,
        padding: 0,
    };
    // SAFETY: `ids` lives across the call and has the room that `count` tells the kernel.
    unsafe { bpf(PROG_QUERY, &mut query) }?;
    ids.truncate(query.count as usize);
    Ok(ids)
}

/// A descriptor of a loaded program.
pub fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    let mut by_id = ById { id, next: 0, flags: 0 };
    // SAFETY: the attribute has no pointers.
    unsafe { new_fd(PROG_GET_FD_BY_ID, &mut by_id) }
}

fn attachment(command: libc::c_int, cgroup: impl AsFd, program: impl AsFd, flags: u32) -> io::Result<()> {
    let mut attach =
        Attach { target: number(&cgroup), program: number(&program), kind: CGROUP_DEVICE, flags };
    // SAFETY: the attribute has no pointers, and both descriptors are borrowed across the call.
    unsafe { bpf(command, &mut attach) }.map(drop)
}

/// A borrowed descriptor is never negative.
fn number(fd: &impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().cast_unsigned()
}

/// # Safety
/// As for [`bpf`], and `command` must be one that returns a new descriptor.
unsafe fn new_fd<T>(command: libc::c_int, attribute: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller keeps bpf's contract.
    let fd = unsafe { bpf(command, attribute) }?;
    // SAFETY: the kernel made this descriptor (with close-on-exec) for this call, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// `T` must be the attribute of `command`, without uninitialised bytes, and its pointers must be valid for
/// what the command does with them.
unsafe fn bpf<T>(command: libc::c_int, attribute: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads and writes at most `size_of::<T>()` bytes of the attribute, which is borrowed
    // exclusively; the caller vouches for the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attribute, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}
