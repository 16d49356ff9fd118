//! Moving bytes between pipes and sockets without reading them.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

/// Copies up to `length` bytes from one pipe to another and leaves them in the first; 0 is its end of file.
/// Never blocks: `WouldBlock` when the first is empty or the second full.
pub fn tee(from: BorrowedFd<'_>, to: BorrowedFd<'_>, length: usize) -> io::Result<usize> {
    // SAFETY: takes integers only.
    let count = unsafe { libc::tee(from.as_raw_fd(), to.as_raw_fd(), length, libc::SPLICE_F_NONBLOCK) };
    Ok(super::check(count as libc::c_long)? as usize)
}

/// Moves up to `length` bytes from one descriptor to another, at least one of them a pipe; 0 is the first
/// one's end of file. Never blocks on the pipe; the other must be non-blocking itself.
pub fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, length: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: null offsets make both sides use their own position.
    let count = unsafe {
        libc::splice(from.as_raw_fd(), ptr::null_mut(), to.as_raw_fd(), ptr::null_mut(), length, flags)
    };
    Ok(super::check(count as libc::c_long)? as usize)
}

/// Gives a pipe room for at least `bytes`; answers what it has now. EPERM beyond `fs.pipe-max-size`.
pub fn set_size(pipe: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let bytes = libc::c_int::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: takes integers only.
    let size = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) };
    Ok(super::check(size.into())? as usize)
}

/// How many bytes a pipe (or socket, or terminal) holds for its reader.
pub fn pending(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD stores one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD as libc::Ioctl, &raw mut count) };
    super::check(result.into())?;
    Ok(count as usize)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::fd::AsFd,
    };

    use super::*;

    #[test]
    fn tee_leaves_what_splice_then_takes() {
        let (source, mut feed) = io::pipe().unwrap();
        let (mut seen, copy) = io::pipe().unwrap();
        feed.write_all(b"berth").unwrap();
        assert_eq!(tee(source.as_fd(), copy.as_fd(), 3).unwrap(), 3);
        assert_eq!(pending(source.as_fd()).unwrap(), 5);
        assert_eq!(splice(source.as_fd(), copy.as_fd(), 64).unwrap(), 5);
        let mut bytes = [0; 8];
        seen.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"berberth");
        assert_eq!(tee(source.as_fd(), copy.as_fd(), 1).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(feed);
        assert_eq!(tee(source.as_fd(), copy.as_fd(), 1).unwrap(), 0);
    }

    #[test]
    fn a_pipe_grows() {
        let (source, _feed) = io::pipe().unwrap();
        assert!(set_size(source.as_fd(), 128 * 1024).unwrap() >= 128 * 1024);
    }
}
