//! The addresses of interfaces as the kernel lists and changes them.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressFlags, AddressHeader, AddressHeaderFlags, AddressScope};

use super::{
    Message, Result, Socket,
    message::Attributes,
    route::{address, family, octets},
};
use crate::network::prefix::Prefix;

/// Types of linux/rtnetlink.h.
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
/// Attributes of linux/if_addr.h.
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::network) struct Address {
    pub(in crate::network) link: u32,
    pub(in crate::network) prefix: Prefix,
    /// The other end's, where it is point to point.
    pub(in crate::network) peer: Option<IpAddr>,
    /// Made by the kernel, or by what it hears from routers: it comes and goes without us.
    pub(in crate::network) automatic: bool,
    /// As the kernel tells it.
    body: Vec<u8>,
}

pub(super) fn parse(payload: &[u8]) -> Option<Address> {
    let header = AddressHeader::parse(payload).ok()?;
    let attributes = Attributes::new(payload.get(size_of::<libc::ifaddrmsg>()..)?);
    let ip = |kind| attributes.get(kind).and_then(address);
    let other = ip(IFA_ADDRESS);
    // IPv4 always has the local one; IPv6 only beside a peer's.
    let own = ip(IFA_LOCAL).or(other)?;
    let flags = attributes.number(IFA_FLAGS).unwrap_or_else(|| header.flags.bits().into());
    let permanent = AddressFlags::from_bits_retain(flags).contains(AddressFlags::Permanent);
    let local_scope = match own {
        IpAddr::V4(_) => header.scope == AddressScope::Host,
        IpAddr::V6(_) => matches!(header.scope, AddressScope::Host | AddressScope::Link),
    };
    Some(Address {
        link: header.index,
        prefix: Prefix { address: own, length: header.prefix_len },
        peer: other.filter(|other| *other != own),
        automatic: local_scope || !permanent,
        body: payload.to_vec(),
    })
}

impl Socket {
    pub(in crate::network) fn addresses(&self) -> Result<Vec<Address>> {
        self.list(&Message::new(RTM_GETADDR, 0, &AddressHeader::default()), RTM_NEWADDR, parse)
    }

    /// Gives `link` an address. An IPv6 address is used at once: the host has made it unique, and one that is still
    /// being checked for duplicates could not be a route's source in the host's next call.
    pub(in crate::network) fn add_address(&self, link: u32, prefix: Prefix) -> Result<()> {
        let Prefix { address, length } = prefix;
        let mut header =
            AddressHeader { family: family(address), prefix_len: length, index: link, ..Default::default() };
        if address.is_ipv6() {
            header.flags = AddressHeaderFlags::Nodad;
        }
        let octets = octets(address);
        let mut message = Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &header)
            .with(IFA_LOCAL, &octets)
            .with(IFA_ADDRESS, &octets);
        if let Some(broadcast) = prefix.broadcast() {
            message = message.with(IFA_BROADCAST, &broadcast.octets());
        }
        self.change(&message)
    }

    /// Gives an address back that [`Socket::addresses`] has listed.
    pub(in crate::network) fn restore_address(&self, address: &Address) -> Result<()> {
        self.change(&Message::again(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, address.body.clone()))
    }

    pub(in crate::network) fn delete_address(&self, address: &Address) -> Result<()> {
        self.change(&Message::again(RTM_DELADDR, 0, address.body.clone()))
    }
}
