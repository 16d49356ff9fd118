//! Network settings that need a bare system call: the loopback device, and options of netlink sockets.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

/// Brings the loopback device of this network namespace up; the kernel gives it its addresses.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: takes integers only.
    let socket: OwnedFd = super::owned(
        unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }.into(),
    )?;
    // SAFETY: ifreq is integers and arrays of them, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = *byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads the name and the flags of the ifreq it is given.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request) };
    super::check(result.into())?;
    Ok(())
}

/// Has the kernel say on this netlink socket why it refuses a request (`NETLINK_EXT_ACK`, Linux 4.12), without
/// the request itself in each answer (`NETLINK_CAP_ACK`).
pub fn explain_errors(socket: BorrowedFd<'_>) -> io::Result<()> {
    for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
        let on: libc::c_int = 1;
        // SAFETY: the value is one integer of the length that is given.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_NETLINK,
                option,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        super::check(result.into())?;
    }
    Ok(())
}
