//! The ioctls of `/dev/mapper/control`.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// The length of the kernel's `struct dm_ioctl`, with which every buffer begins.
pub const HEADER: usize = 312;
/// Where in it the length of the whole buffer is.
const DATA_SIZE: std::ops::Range<usize> = 12..16;
const MAGIC: u32 = 0xfd;

/// Sends command `number` with `buffer`, which the kernel fills with its answer.
pub fn command(control: BorrowedFd<'_>, number: u8, buffer: &mut [u8]) -> io::Result<()> {
    let length = u32::try_from(buffer.len()).ok().filter(|_| buffer.len() >= HEADER);
    let length = length.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    if let Some(field) = buffer.get_mut(DATA_SIZE) {
        field.copy_from_slice(&length.to_ne_bytes());
    }
    let request = libc::_IOWR::<[u8; HEADER]>(MAGIC, number.into());
    // SAFETY: the kernel reads and writes no more than the `data_size` bytes that were just set to the length.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), request, buffer.as_mut_ptr()) };
    super::check(result.into())?;
    Ok(())
}
