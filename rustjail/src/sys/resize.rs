//! Growing mounted file systems.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

const BTRFS_NAME: usize = 4088;

#[repr(C)]
struct XfsGrow {
    blocks: u64,
    inode_percent: u32,
}

#[repr(C)]
struct BtrfsArguments {
    fd: i64,
    name: [u8; BTRFS_NAME],
}

/// Grows an ext4 to `blocks` of its own block size.
pub fn ext4(root: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
    // SAFETY: EXT4_IOC_RESIZE_FS reads one u64.
    let result =
        unsafe { libc::ioctl(root.as_raw_fd(), libc::_IOW::<u64>(b'f'.into(), 16), &raw const blocks) };
    super::check(result.into())?;
    Ok(())
}

/// Grows an XFS to `blocks` of its own block size.
pub fn xfs(root: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
    // `struct xfs_fsop_geom_v1`: the eighth u32 is the inodes' share, which growing must repeat.
    let mut geometry = [0_u32; 28];
    let request = libc::_IOR::<[u32; 28]>(b'X'.into(), 100);
    // SAFETY: XFS_IOC_FSGEOMETRY_V1 writes 112 bytes, as many as the array has.
    super::check(unsafe { libc::ioctl(root.as_raw_fd(), request, geometry.as_mut_ptr()) }.into())?;
    let grow = XfsGrow { blocks, inode_percent: geometry.get(7).copied().unwrap_or_default() };
    let request = libc::_IOW::<XfsGrow>(b'X'.into(), 110);
    // SAFETY: XFS_IOC_FSGROWFSDATA reads the structure it is given.
    super::check(unsafe { libc::ioctl(root.as_raw_fd(), request, &raw const grow) }.into())?;
    Ok(())
}

/// Resizes the first device of a btrfs to `bytes`.
pub fn btrfs(root: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let mut arguments = BtrfsArguments { fd: 0, name: [0; BTRFS_NAME] };
    for (place, byte) in arguments.name.iter_mut().zip(bytes.to_string().bytes()) {
        *place = byte;
    }
    let request = libc::_IOW::<BtrfsArguments>(0x94, 3);
    // SAFETY: BTRFS_IOC_RESIZE reads the structure it is given, whose name ends with a NUL.
    super::check(unsafe { libc::ioctl(root.as_raw_fd(), request, &raw const arguments) }.into())?;
    Ok(())
}
