//! The kernel's uevents, as a mere notice that something changed.
//!
//! Messages are taken off the socket and thrown away. Only the kernel's count: a message of a process (its port
//! is not 0) is ignored. A full socket loses messages and says so once with ENOBUFS, which is one more notice.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::reactor::register;

/// The multicast group of the kernel itself; 2 is udev's.
const KERNEL: u32 = 1;
/// Messages taken in one go, so that a flood does not keep the reactor from its other work.
const BATCH: usize = 256;
/// No uevent's header is longer, and the rest of one is not read.
const HEADER: usize = 256;

/// A subscription to uevents.
#[derive(Debug)]
pub struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    /// Subscribes. Needs a reactor.
    pub fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let kind = SockProtocol::NetlinkKObjectUEvent;
        let fd = socket(AddressFamily::Netlink, SockType::Datagram, flags, kind)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
        register(fd, Interest::READABLE).map(Self)
    }

    /// Waits until the kernel has said something, and takes all of it.
    pub(super) async fn news(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            let (heard, emptied) = drain(self.0.get_ref())?;
            if emptied {
                ready.clear_ready();
            } else {
                tokio::task::yield_now().await;
            }
            if heard {
                return Ok(());
            }
        }
    }
}

/// Whether the kernel was among the senders, and whether nothing is left.
fn drain(socket: &OwnedFd) -> io::Result<(bool, bool)> {
    let mut heard = false;
    let mut header = [0; HEADER];
    for _ in 0..BATCH {
        match recvfrom::<NetlinkAddr>(socket.as_raw_fd(), &mut header) {
            Ok((_, sender)) => heard |= sender.is_some_and(|sender| sender.pid() == 0),
            Err(Errno::EAGAIN) => return Ok((heard, true)),
            Err(Errno::ENOBUFS) => heard = true,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok((heard, false))
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    /// Asks the kernel for synthetic events, far more than the socket holds; each look stays possible.
    /// Row R9 of the reliability tests.
    #[tokio::test]
    async fn a_flood_is_one_notice_after_another() {
        let Ok(socket) = Socket::open() else { panic!("uevents need the host's network namespace or root") };
        let trigger = "/sys/devices/virtual/mem/null/uevent";
        if fs::write(trigger, "change").is_err() {
            assert!(std::env::var_os("CI").is_none(), "{trigger} cannot be written: run as root");
            eprintln!("skipped: {trigger} cannot be written: run as root");
            return;
        }
        let flood = tokio::task::spawn_blocking(move || {
            (0..10_000).all(|_| fs::write(trigger, "change 7f2c1b7e-0000-4000-8000-000000000000 A=B").is_ok())
        });
        let mut notices = 0;
        while tokio::time::timeout(Duration::from_millis(500), socket.news()).await.is_ok() {
            notices += 1;
        }
        assert!(flood.await.unwrap() && notices > 0);
        fs::write(trigger, "change").unwrap();
        tokio::time::timeout(Duration::from_secs(20), socket.news()).await.unwrap().unwrap();
    }

    /// Anybody with CAP_NET_ADMIN may multicast here; it must not pass for the kernel.
    #[tokio::test]
    async fn a_process_is_not_the_kernel() {
        use nix::sys::socket::{MsgFlags, sendto};
        let socket = Socket::open().unwrap();
        let kind = SockProtocol::NetlinkKObjectUEvent;
        let forger = nix::sys::socket::socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            kind,
        )
        .unwrap();
        let forged = b"add@/devices/x\0ACTION=add\0";
        if sendto(forger.as_raw_fd(), forged, &NetlinkAddr::new(0, KERNEL), MsgFlags::empty()).is_err() {
            eprintln!("skipped: not allowed to multicast");
            assert!(std::env::var_os("CI").is_none());
            return;
        }
        socket.0.readable().await.unwrap().retain_ready();
        let (heard, emptied) = drain(socket.0.get_ref()).unwrap();
        // Another test may have asked the kernel for events meanwhile.
        assert!(emptied && (!heard || fs::metadata("/sys/devices/virtual/mem/null/uevent").is_ok()));
    }
}
