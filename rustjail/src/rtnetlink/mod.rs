//! Network devices that are handed to a container.
//!
//! A device that moves to another network namespace is taken down and loses its addresses. So they are read
//! before ([`describe`]), the device is moved and renamed in one request ([`hand_over`]), and whoever is in
//! the new namespace gives it back what it had ([`settle`]). What becomes of it when the namespace ends is
//! the kernel's business: a physical device returns to the machine's, a virtual one goes with it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
};
use serde::{Deserialize, Serialize};

mod message;

use message::{Request, attributes, messages};

/// The kernel fills at most this much for one read of a dump.
const BUFFER: usize = 32 * 1024;

/// `struct ifinfomsg` and `struct ifaddrmsg`.
const LINK_PART: usize = 16;
const ADDRESS_PART: usize = 8;

/// A device to be handed over, as it is before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetDevice {
    /// Where it is now.
    pub name: String,
    /// In the container.
    pub new_name: String,
    /// It was up.
    pub up: bool,
    /// Those that are not bound to this one link.
    pub addresses: Vec<Address>,
}

/// An address of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// AF_INET or AF_INET6.
    pub family: u8,
    /// The length of the network's part.
    pub prefix: u8,
    /// RT_SCOPE_*.
    pub scope: u8,
    /// IFA_* and values, as the kernel gave them.
    pub attributes: Vec<(u16, Vec<u8>)>,
}

/// Reads what the device `name` of this network namespace is and has.
pub fn describe(name: &str, new_name: &str) -> io::Result<NetDevice> {
    let mut link = Link::open()?;
    let (index, flags) = link.find(name)?;
    let addresses = link.addresses(index)?;
    let up = flags & libc::IFF_UP as u32 != 0;
    Ok(NetDevice { name: name.to_owned(), new_name: new_name.to_owned(), up, addresses })
}

/// Moves `device` from this network namespace to `namespace`, under its new name.
pub fn hand_over(device: &NetDevice, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let mut link = Link::open()?;
    let (index, _) = link.find(&device.name)?;
    let mut request = Request::new(libc::RTM_NEWLINK, REQUEST_ACK, &link_part(index, 0, 0));
    request.text(libc::IFLA_IFNAME, &device.new_name)?;
    request.attribute(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes())?;
    link.ask(request, |_| {})
}

/// Gives `device`, which is in this network namespace by now, what it had.
pub fn settle(device: &NetDevice) -> io::Result<()> {
    let mut link = Link::open()?;
    let (index, _) = link.find(&device.new_name)?;
    for address in &device.addresses {
        link.add_address(index, address)?;
    }
    if device.up {
        let up = libc::IFF_UP as u32;
        link.ask(Request::new(libc::RTM_NEWLINK, REQUEST_ACK, &link_part(index, up, up)), |_| {})?;
    }
    Ok(())
}

const REQUEST_ACK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;

/// A conversation with the kernel about the devices of one network namespace.
struct Link {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Link {
    fn open() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::Netlink, SockType::Raw);
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// Index and flags of the device `name`.
    fn find(&mut self, name: &str) -> io::Result<(i32, u32)> {
        let mut request = Request::new(libc::RTM_GETLINK, REQUEST_ACK, &link_part(0, 0, 0));
        request.text(libc::IFLA_IFNAME, name)?;
        let mut found = None;
        self.ask(request, |body| {
            found = found.or_else(|| {
                let (&index, rest) = body.get(4..)?.split_first_chunk::<4>()?;
                let (&flags, _) = rest.split_first_chunk::<4>()?;
                Some((i32::from_ne_bytes(index), u32::from_ne_bytes(flags)))
            });
        })?;
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// The addresses that are the device's for good and mean something beyond the link.
    fn addresses(&mut self, index: i32) -> io::Result<Vec<Address>> {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        let mut addresses = Vec::new();
        self.ask(Request::new(libc::RTM_GETADDR, flags, &[0; ADDRESS_PART]), |body| {
            addresses.extend(address(body, index));
        })?;
        Ok(addresses)
    }

    fn add_address(&mut self, index: i32, address: &Address) -> io::Result<()> {
        let mut fixed = vec![address.family, address.prefix, 0, address.scope];
        fixed.extend(index.to_ne_bytes());
        let flags = REQUEST_ACK | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
        let mut request = Request::new(libc::RTM_NEWADDR, flags, &fixed);
        for (kind, value) in &address.attributes {
            request.attribute(*kind, value)?;
        }
        self.ask(request, |_| {})
    }

    /// Sends a request and hands the body of every answer to `each`, up to the one that ends it.
    fn ask(&mut self, request: Request, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        send(self.socket.as_raw_fd(), &request.finish()?, MsgFlags::empty())?;
        loop {
            let length = recv(self.socket.as_fd().as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
            for message in messages(self.buffer.get(..length).unwrap_or_default()) {
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return verdict(message.body),
                    _ => each(message.body),
                }
            }
        }
    }
}

/// An error message with the error 0 is the acknowledgement.
fn verdict(body: &[u8]) -> io::Result<()> {
    let Some(&errno) = body.first_chunk::<4>() else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    match i32::from_ne_bytes(errno) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
    }
}

fn link_part(index: i32, flags: u32, change: u32) -> Vec<u8> {
    // Family, padding and device type are left to the kernel.
    let mut fixed = vec![0; 4];
    fixed.extend(index.to_ne_bytes());
    fixed.extend(flags.to_ne_bytes());
    fixed.extend(change.to_ne_bytes());
    debug_assert_eq!(fixed.len(), LINK_PART);
    fixed
}

fn address(body: &[u8], of_device: i32) -> Option<Address> {
    let (&[family, prefix, flags, scope], rest) = body.split_first_chunk::<4>()?;
    let index = i32::from_ne_bytes(*rest.first_chunk::<4>()?);
    let permanent = u32::from(flags) & libc::IFA_F_PERMANENT != 0;
    if index != of_device || scope != libc::RT_SCOPE_UNIVERSE || !permanent {
        return None;
    }
    // The label of an IPv4 address has the device's old name in it, and the cache information is the kernel's.
    let kept = [libc::IFA_ADDRESS, libc::IFA_LOCAL, libc::IFA_BROADCAST];
    let attributes = attributes(body, ADDRESS_PART).filter(|(kind, _)| kept.contains(kind));
    let attributes = attributes.map(|(kind, value)| (kind, value.to_vec())).collect();
    Some(Address { family, prefix, scope, attributes })
}
