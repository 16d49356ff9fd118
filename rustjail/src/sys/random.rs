//! Crediting entropy to the kernel, random(4).

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// `_IOW('R', 0x03, int [2])` of `linux/random.h`.
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
/// `_IO('R', 0x07)`, since Linux 4.14.
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

/// Bytes credited with one call.
const CHUNK: usize = 512;

/// `struct rand_pool_info` with its data.
#[repr(C)]
struct Pool {
    /// In bits. To say bytes here would credit an eighth.
    entropy_count: libc::c_int,
    buf_size: libc::c_int,
    buf: [u8; CHUNK],
}

impl Pool {
    fn new(chunk: &[u8]) -> Self {
        let mut pool = Self {
            entropy_count: 8 * chunk.len() as libc::c_int,
            buf_size: chunk.len() as libc::c_int,
            buf: [0; CHUNK],
        };
        pool.buf.iter_mut().zip(chunk).for_each(|(place, byte)| *place = *byte);
        pool
    }
}

/// Mixes `data` into the pool that `device` stands for and credits every bit of it. Needs CAP_SYS_ADMIN.
pub fn add_entropy(device: impl AsFd, data: &[u8]) -> io::Result<()> {
    for chunk in data.chunks(CHUNK) {
        let pool = Pool::new(chunk);
        // SAFETY: the kernel reads the two numbers and `buf_size` bytes after them, all of which are in `pool`.
        let added = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), RNDADDENTROPY, &raw const pool) };
        super::check(added.into())?;
    }
    Ok(())
}

/// Has the generator take a new key from the pool now.
pub fn reseed(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    super::check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), RNDRESEEDCRNG) }.into())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Pool;

    #[test]
    fn every_bit_is_credited() {
        let pool = Pool::new(&[7; 32]);
        assert_eq!((pool.entropy_count, pool.buf_size), (256, 32));
        assert_eq!((pool.buf[31], pool.buf[32]), (7, 0));
        assert_eq!(std::mem::offset_of!(Pool, buf), 8);
    }
}
