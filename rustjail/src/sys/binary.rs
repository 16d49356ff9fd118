//! The file that a process shows as its binary, in `/proc/PID/exe` and to an interpreter of that name.
//!
//! The kernel lets a process show another one (`PR_SET_MM_MAP`, prctl(2)) once it maps nothing of the old one any
//! more. So what is only read is mapped anew from the other, which has to be the same file by another mount: the
//! instructions that do this are among what is replaced. What is written to becomes memory without a file.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr, slice,
};

use nix::sys::stat::{fstat, stat};

/// A run of whole pages that is mapped from the binary.
#[derive(Debug, Clone, Copy)]
struct Segment {
    start: usize,
    length: usize,
    offset: libc::off_t,
    protection: libc::c_int,
}

/// Where the parts of a process are, as `/proc/PID/stat` tells: the first address and the one after the last.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// The instructions.
    pub code: [u64; 2],
    /// The data.
    pub data: [u64; 2],
    /// Where the heap begins that brk(2) changes.
    pub heap: u64,
    /// Where the stack began.
    pub stack: u64,
    /// The arguments.
    pub arguments: [u64; 2],
    /// The environment.
    pub environment: [u64; 2],
}

/// `struct prctl_mm_map` (`linux/prctl.h`).
#[repr(C)]
struct Map {
    code: [u64; 2],
    data: [u64; 2],
    heap: [u64; 2],
    stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
    auxiliary_vector: u64,
    /// 0 leaves that as it is.
    auxiliary_size: u32,
    binary: libc::c_int,
}

/// Whether the kernel lets processes [`change`] their binary (CONFIG_CHECKPOINT_RESTORE) and it is known where this one's is.
pub fn is_changeable() -> bool {
    let mut size = 0_u32;
    // SAFETY: the kernel writes one number, to where it is told.
    let known = unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_MM, libc::PR_SET_MM_MAP_SIZE, &raw mut size, 0_u64, 0_u64)
    };
    known == 0 && size as usize == size_of::<Map>() && program_headers().is_some()
}

/// Has the binary be `file`, which is the same file (or else this is EINVAL), open for reading by another mount. `layout` is
/// the process's own. Takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
///
/// To be called by a process with one thread, and on failure to be followed by its end: a part may be mapped by either mount
/// then.
pub(crate) fn change(file: BorrowedFd<'_>, layout: Layout) -> io::Result<()> {
    let (own, other) = (stat("/proc/self/exe")?, fstat(file)?);
    if (own.st_dev, own.st_ino) != (other.st_dev, other.st_ino) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let (base, headers) = program_headers().ok_or(io::ErrorKind::Unsupported)?;
    // SAFETY: asks for a number that the kernel gave this process at its start.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
    let of_kind = |kind| headers.iter().filter(move |header| header.p_type == kind);
    let of_file = of_kind(libc::PT_LOAD).filter(|header| header.p_filesz > 0);
    for segment in of_file.map(|header| Segment::new(base, page, header)) {
        if segment.protection & libc::PROT_WRITE == 0 {
            map(segment, file)?;
        } else {
            detach(segment)?;
        }
    }
    for constant in of_kind(libc::PT_GNU_RELRO) {
        let start = base.wrapping_add(constant.p_vaddr as usize);
        let end = start.wrapping_add(constant.p_memsz as usize) / page * page;
        protect(start / page * page, end)?;
    }
    show(file, layout)
}

/// Where the program was loaded relative to what its program headers say, and those.
fn program_headers() -> Option<(usize, &'static [libc::Elf64_Phdr])> {
    // SAFETY: asks for two numbers that the kernel gave this process at its start.
    let (start, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    let start = start as usize as *const libc::Elf64_Phdr;
    if start.is_null() {
        return None;
    }
    // SAFETY: the kernel says that the program's headers are there; they are mapped for as long as it runs, and constant.
    let headers = unsafe { slice::from_raw_parts(start, count as usize) };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR)?;
    Some(((start as usize).wrapping_sub(own.p_vaddr as usize), headers))
}

impl Segment {
    fn new(base: usize, page: usize, header: &libc::Elf64_Phdr) -> Self {
        let start = base.wrapping_add(header.p_vaddr as usize);
        let before = start % page;
        let flag = |flag: u32, protection| if header.p_flags & flag == 0 { 0 } else { protection };
        Self {
            start: start - before,
            length: (before + header.p_filesz as usize).next_multiple_of(page),
            offset: (header.p_offset as usize - before) as libc::off_t,
            protection: flag(libc::PF_R, libc::PROT_READ)
                | flag(libc::PF_W, libc::PROT_WRITE)
                | flag(libc::PF_X, libc::PROT_EXEC),
        }
    }
}

fn map(segment: Segment, file: BorrowedFd<'_>) -> io::Result<()> {
    let Segment { start, length, offset, protection } = segment;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: replaces constant pages by the same ones of the same file, which nobody can write to while it is executed, in
    // one step: nothing that is read or executed there changes.
    let mapped = unsafe {
        libc::mmap(start as *mut libc::c_void, length, protection, flags, file.as_raw_fd(), offset)
    };
    checked(mapped)
}

fn detach(segment: Segment) -> io::Result<()> {
    let Segment { start, length, .. } = segment;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let target = start as *mut libc::c_void;
    // SAFETY: new memory, which nobody else knows of.
    let copy = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    checked(copy)?;
    // SAFETY: both are whole pages of this process, that many bytes long. It has no other thread, so that nothing is written
    // to the first between the copy and the move, which puts the second in its place in one step.
    let moved = unsafe {
        ptr::copy_nonoverlapping(target.cast::<u8>(), copy.cast::<u8>(), length);
        libc::mremap(copy, length, length, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, target)
    };
    checked(moved)
}

/// Makes constant what a program has no need to change once it runs.
fn protect(start: usize, end: usize) -> io::Result<()> {
    if end <= start {
        return Ok(());
    }
    // SAFETY: what the linker has put there is not written to once the program has begun.
    let result = unsafe { libc::mprotect(start as *mut libc::c_void, end - start, libc::PROT_READ) };
    super::check(result.into()).map(drop)
}

fn checked(mapped: *mut libc::c_void) -> io::Result<()> {
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn show(file: BorrowedFd<'_>, layout: Layout) -> io::Result<()> {
    let Layout { code, data, heap, stack, arguments, environment } = layout;
    // SAFETY: moves the end of the heap nowhere, and answers where it is.
    let end = unsafe { libc::syscall(libc::SYS_brk, 0) } as u64;
    let heap = [heap, end];
    let binary = file.as_raw_fd();
    let map = Map {
        code,
        data,
        heap,
        stack,
        arguments,
        environment,
        auxiliary_vector: 0,
        auxiliary_size: 0,
        binary,
    };
    let (map, size) = (&raw const map, size_of::<Map>());
    // SAFETY: the kernel reads that many bytes from there. The addresses in them it checks, and only it uses them.
    super::check(unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_MM, libc::PR_SET_MM_MAP, map, size, 0_u64)
    })
    .map(drop)
}
