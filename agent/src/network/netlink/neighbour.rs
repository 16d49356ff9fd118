//! Neighbours, the ARP and ND tables, as the kernel lists and changes them.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::{
    neighbour::{NeighbourFlags, NeighbourHeader, NeighbourState},
    route::RouteType,
};

use super::{
    Message, Result, Socket,
    message::Attributes,
    route::{address, family, octets},
};

/// Types of linux/rtnetlink.h.
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
/// Attributes of linux/neighbour.h.
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// What the kernel knows of one neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::network) struct Known {
    pub(in crate::network) link: u32,
    pub(in crate::network) address: IpAddr,
    /// Answered for, not reached (NTF_PROXY).
    pub(in crate::network) proxy: bool,
    /// As the kernel tells it.
    body: Vec<u8>,
}

/// A neighbour to be made known.
#[derive(Debug, Clone)]
pub(in crate::network) struct NewNeighbour {
    pub(in crate::network) link: u32,
    pub(in crate::network) address: IpAddr,
    pub(in crate::network) mac: Vec<u8>,
    /// NUD_*.
    pub(in crate::network) state: u16,
    /// NTF_*.
    pub(in crate::network) flags: u8,
}

pub(super) fn parse(payload: &[u8]) -> Option<Known> {
    let header = NeighbourHeader::parse(payload).ok()?;
    let attributes = Attributes::new(payload.get(HEADER..)?);
    Some(Known {
        link: header.ifindex,
        address: attributes.get(NDA_DST).and_then(address)?,
        proxy: header.flags.contains(NeighbourFlags::Proxy),
        body: payload.to_vec(),
    })
}

/// `struct ndmsg`, which libc does not have.
const HEADER: usize = 12;

impl NewNeighbour {
    pub(in crate::network) fn is_proxy(&self) -> bool {
        NeighbourFlags::from_bits_retain(self.flags).contains(NeighbourFlags::Proxy)
    }

    fn message(&self, kind: u16, flags: u16) -> Message {
        let header = NeighbourHeader {
            family: family(self.address),
            ifindex: self.link,
            state: NeighbourState::from(self.state),
            flags: NeighbourFlags::from_bits_retain(self.flags),
            kind: RouteType::Unspec,
        };
        let message = Message::new(kind, flags, &header).with(NDA_DST, &octets(self.address));
        if self.mac.is_empty() { message } else { message.with(NDA_LLADDR, &self.mac) }
    }
}

impl Socket {
    /// All neighbours of both families; those answered for are a list of their own.
    pub(in crate::network) fn neighbours(&self) -> Result<Vec<Known>> {
        let mut known = Vec::new();
        for flags in [NeighbourFlags::empty(), NeighbourFlags::Proxy] {
            let header = NeighbourHeader { flags, ..Default::default() };
            known.extend(self.list(&Message::new(RTM_GETNEIGH, 0, &header), RTM_NEWNEIGH, parse)?);
        }
        Ok(known)
    }

    /// Makes a neighbour known, in place of what was known of it.
    pub(in crate::network) fn set_neighbour(&self, neighbour: &NewNeighbour) -> Result<()> {
        self.change(&neighbour.message(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE))
    }

    pub(in crate::network) fn delete_neighbour(&self, neighbour: &NewNeighbour) -> Result<()> {
        self.change(&neighbour.message(RTM_DELNEIGH, 0))
    }

    /// Gives back what [`Socket::neighbours`] has listed.
    pub(in crate::network) fn restore_neighbour(&self, known: &Known) -> Result<()> {
        self.change(&Message::again(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, known.body.clone()))
    }
}
