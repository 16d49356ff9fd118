//! Routes of the main table as the kernel lists and changes them.

use std::net::{IpAddr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily,
    route::{RouteFlags, RouteHeader, RouteProtocol, RouteScope, RouteType},
};

use super::{Message, Result, Socket, message::Attributes};
use crate::network::prefix::Prefix;

/// Types of linux/rtnetlink.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
/// Attributes of linux/rtnetlink.h.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
/// `RT_TABLE_MAIN`, in an attribute.
const MAIN: u32 = 254;

/// One route; of several next hops one each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::network) struct Hop {
    pub(in crate::network) link: u32,
    pub(in crate::network) gateway: Option<IpAddr>,
    pub(in crate::network) flags: u32,
}

/// What tells routes of one table apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::network) struct Key {
    pub(in crate::network) destination: Prefix,
    pub(in crate::network) metric: u32,
}

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::network) struct Entry {
    pub(in crate::network) key: Key,
    pub(in crate::network) hops: Vec<Hop>,
    pub(in crate::network) source: Option<IpAddr>,
    pub(in crate::network) scope: u8,
    pub(in crate::network) mtu: u32,
    /// The kernel made it for an address, and takes it away with it.
    pub(in crate::network) automatic: bool,
    /// As the kernel tells it.
    body: Vec<u8>,
}

/// A route to be made.
#[derive(Debug, Clone)]
pub(in crate::network) struct NewRoute {
    pub(in crate::network) key: Key,
    pub(in crate::network) link: Option<u32>,
    pub(in crate::network) gateway: Option<IpAddr>,
    pub(in crate::network) source: Option<IpAddr>,
    pub(in crate::network) scope: u8,
    pub(in crate::network) flags: u32,
    pub(in crate::network) mtu: u32,
}

pub(super) fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// An address of either family, told by its length.
pub(super) fn address(octets: &[u8]) -> Option<IpAddr> {
    let short: Option<[u8; 4]> = octets.try_into().ok();
    let long: Option<[u8; 16]> = octets.try_into().ok();
    short.map(IpAddr::from).or_else(|| long.map(IpAddr::from))
}

/// The family and the address behind it.
fn via(value: &[u8]) -> Option<IpAddr> {
    address(value.get(size_of::<libc::sa_family_t>()..)?)
}

/// The routes that count for hosts: those by which packets of the main table leave.
pub(super) fn parse(payload: &[u8]) -> Option<Entry> {
    let header = RouteHeader::parse(payload).ok()?;
    let attributes = Attributes::new(payload.get(HEADER..)?);
    let table = attributes.number(RTA_TABLE).unwrap_or_else(|| header.table.into());
    if table != MAIN || header.kind != RouteType::Unicast || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let any: IpAddr = match header.address_family {
        AddressFamily::Inet => [0; 4].into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let ip = |kind| attributes.get(kind).and_then(address);
    let metrics = Attributes::new(attributes.get(RTA_METRICS).unwrap_or_default());
    let gateway = |attributes: Attributes<'_>| {
        attributes.get(RTA_GATEWAY).and_then(address).or_else(|| attributes.get(RTA_VIA).and_then(via))
    };
    let hops = match attributes.get(RTA_MULTIPATH) {
        Some(hops) => {
            next_hops(hops).map(|(link, flags, inner)| Hop { link, gateway: gateway(inner), flags }).collect()
        }
        None => vec![Hop {
            link: attributes.number(RTA_OIF).unwrap_or_default(),
            gateway: gateway(attributes),
            flags: header.flags.bits() & FLAGS,
        }],
    };
    let destination =
        Prefix { address: ip(RTA_DST).unwrap_or(any), length: header.destination_prefix_length };
    Some(Entry {
        key: Key { destination, metric: attributes.number(RTA_PRIORITY).unwrap_or_default() },
        hops,
        source: ip(RTA_PREFSRC),
        scope: header.scope.into(),
        mtu: metrics.number(RTAX_MTU).unwrap_or_default(),
        automatic: header.protocol == RouteProtocol::Kernel,
        body: payload.to_vec(),
    })
}

/// `struct rtmsg`, which libc does not have.
const HEADER: usize = 12;
/// `struct rtnexthop`: length, flags, hops, interface.
const NEXT_HOP: usize = 8;

/// The flags a route may be made with (RTNH_F_PERVASIVE, RTNH_F_ONLINK). The others say what state a route is in:
/// the kernel refuses some of them and ignores the rest.
pub(in crate::network) const FLAGS: u32 = 2 | 4;

fn next_hops(mut hops: &[u8]) -> impl Iterator<Item = (u32, u32, Attributes<'_>)> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*hops.first_chunk()?));
        let flags = u32::from(*hops.get(2)?) & FLAGS;
        let link = u32::from_ne_bytes(*hops.get(4..)?.first_chunk()?);
        let attributes = Attributes::new(hops.get(NEXT_HOP..length)?);
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((link, flags, attributes))
    })
}

impl Entry {
    /// Gives it back as [`Socket::routes`] has listed it, without the state it was in.
    pub(in crate::network) fn restored(&self) -> Message {
        let mut body = self.body.clone();
        let flags = body.get_mut(HEADER - size_of::<u32>()..).and_then(|rest| rest.first_chunk_mut());
        if let Some(flags) = flags {
            *flags = (u32::from_ne_bytes(*flags) & FLAGS).to_ne_bytes();
        }
        Message::again(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, body)
    }
}

impl NewRoute {
    /// Makes it, in place of the one with the same key.
    pub(in crate::network) fn made(&self) -> Message {
        self.message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Takes it away.
    pub(in crate::network) fn deleted(&self) -> Message {
        self.message(RTM_DELROUTE, 0)
    }

    fn message(&self, kind: u16, flags: u16) -> Message {
        let Key { destination, metric } = self.key;
        let header = RouteHeader {
            address_family: family(destination.address),
            destination_prefix_length: destination.length,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Boot,
            scope: RouteScope::from(self.scope),
            kind: RouteType::Unicast,
            flags: RouteFlags::from_bits_retain(self.flags & FLAGS),
            ..Default::default()
        };
        let mut message = Message::new(kind, flags, &header).with(RTA_DST, &octets(destination.address));
        match self.gateway {
            Some(IpAddr::V6(gateway)) if destination.address.is_ipv4() => {
                let family = libc::sa_family_t::from(u8::from(AddressFamily::Inet6)).to_ne_bytes();
                message = message.with(RTA_VIA, &[&family[..], &gateway.octets()].concat());
            }
            Some(gateway) => message = message.with(RTA_GATEWAY, &octets(gateway)),
            None => {}
        }
        for (kind, value) in [(RTA_OIF, self.link), (RTA_PRIORITY, (metric != 0).then_some(metric))] {
            if let Some(value) = value {
                message = message.with_number(kind, value);
            }
        }
        if let Some(source) = self.source {
            message = message.with(RTA_PREFSRC, &octets(source));
        }
        if self.mtu != 0 {
            let metrics = Message::again(0, 0, Vec::new()).with_number(RTAX_MTU, self.mtu);
            message = message.with(RTA_METRICS, metrics.body());
        }
        message
    }
}

impl Socket {
    /// The unicast routes of the main table, IPv4 before IPv6.
    pub(in crate::network) fn routes(&self) -> Result<Vec<Entry>> {
        let mut routes = Vec::new();
        for address_family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let header = RouteHeader { address_family, ..Default::default() };
            routes.extend(self.list(&Message::new(RTM_GETROUTE, 0, &header), RTM_NEWROUTE, parse)?);
        }
        Ok(routes)
    }
}
