//! Messages with descriptors over Unix sockets.

use std::{
    ffi::c_int,
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

/// The kernel's SCM_MAX_FD: how many descriptors one message can carry.
pub const MAX_FDS: usize = 253;

/// Room for one SCM_RIGHTS header and MAX_FDS descriptors, aligned as a cmsghdr.
type Control = [u64; 130];

/// One message as it was received.
#[derive(Debug)]
pub struct Received {
    /// How many bytes of the buffer it fills; 0 is the end of file (senders send no empty message).
    pub length: usize,
    /// Its descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// It was longer than the buffer, or had more descriptors than this process may have open.
    pub truncated: bool,
}

/// Sends `bytes` and `fds` as one message. A vanished peer is EPIPE, never a signal. Blocks only if the
/// socket does.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > MAX_FDS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut control: Control = [0; 130];
    let mut data = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = empty();
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    if !numbers.is_empty() {
        let payload = size_of_val(numbers.as_slice());
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE and CMSG_LEN only calculate; the control buffer has room for MAX_FDS
        // descriptors, so the first header and its data lie inside it, and it is aligned for both.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(payload as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload as u32) as _;
            ptr::copy_nonoverlapping(numbers.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), payload);
        }
    }
    // SAFETY: everything `message` points to outlives the call; the kernel only reads the data.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    Ok(super::check(sent as libc::c_long)? as usize)
}

/// Receives one message into `buffer`. Blocks only if the socket does.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, buffer, 0)
}

/// Looks at the next message, which stays in the socket; its descriptors are copies all the same. Blocks only
/// if the socket does.
pub fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with(socket, buffer, libc::MSG_PEEK)
}

fn receive_with(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: c_int) -> io::Result<Received> {
    let mut control: Control = [0; 130];
    let mut data = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = empty();
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: everything `message` points to outlives the call and is as long as said.
    let length =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC | flags) };
    let length = super::check(length as libc::c_long)? as usize;
    let fds = descriptors(&message);
    Ok(Received { length, fds, truncated: message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 })
}

/// Takes ownership of every descriptor that came with `message`, which recvmsg has just filled.
fn descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the CMSG macros walk the control buffer within the length the kernel stored; each SCM_RIGHTS
    // payload is an array of descriptors made for this process, which nobody else knows.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header);
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..bytes / size_of::<c_int>() {
                    fds.push(OwnedFd::from_raw_fd(data.cast::<c_int>().add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

fn empty() -> libc::msghdr {
    // SAFETY: msghdr is pointers and integers (and padding on musl), for which all zeroes is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::AsFd, unix::net::UnixDatagram},
    };

    use super::*;

    #[test]
    fn descriptors_arrive_owned() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(a.as_fd(), b"x", &[writer.as_fd(), writer.as_fd()]).unwrap();
        drop(writer);
        let mut buffer = [0; 4];
        let got = receive(b.as_fd(), &mut buffer).unwrap();
        assert_eq!((got.length, got.fds.len(), got.truncated), (1, 2, false));
        for fd in got.fds {
            std::fs::File::from(fd).write_all(b"y").unwrap();
        }
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "yy");
    }

    #[test]
    fn what_was_peeked_at_is_still_there() {
        let (a, b) = UnixDatagram::pair().unwrap();
        send(a.as_fd(), b"x", &[a.as_fd()]).unwrap();
        for _ in 0..3 {
            assert_eq!(peek(b.as_fd(), &mut [0; 4]).unwrap().fds.len(), 1);
        }
        assert_eq!(receive(b.as_fd(), &mut [0; 4]).unwrap().fds.len(), 1);
        b.set_nonblocking(true).unwrap();
        assert!(peek(b.as_fd(), &mut [0; 4]).is_err());
    }

    #[test]
    fn the_most_descriptors_fit_and_more_are_refused() {
        let (a, b) = UnixDatagram::pair().unwrap();
        send(a.as_fd(), b"x", &vec![a.as_fd(); MAX_FDS]).unwrap();
        assert_eq!(receive(b.as_fd(), &mut [0; 1]).unwrap().fds.len(), MAX_FDS);
        assert!(send(a.as_fd(), b"x", &vec![a.as_fd(); MAX_FDS + 1]).is_err());
    }

    #[test]
    fn a_message_that_does_not_fit_is_marked() {
        let (a, b) = UnixDatagram::pair().unwrap();
        send(a.as_fd(), b"longer", &[]).unwrap();
        assert!(receive(b.as_fd(), &mut [0; 2]).unwrap().truncated);
    }
}
