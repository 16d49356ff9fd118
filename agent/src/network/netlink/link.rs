//! Network interfaces as the kernel lists and changes them.

use netlink_packet_route::link::{LinkFlags, LinkHeader};
use nix::errno::Errno;

use super::{
    Message, Result, Socket,
    message::{Attributes, text},
};

/// Types of linux/rtnetlink.h.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
/// Attributes of linux/if_link.h.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
/// Leaves the counters out, which are most of a link's bytes.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::network) struct Link {
    pub(in crate::network) index: u32,
    pub(in crate::network) name: String,
    /// Other names it can be found by, which no other link can take.
    pub(in crate::network) alternatives: Vec<String>,
    pub(in crate::network) mac: Vec<u8>,
    pub(in crate::network) mtu: u32,
    /// IFF_*.
    pub(in crate::network) flags: LinkFlags,
}

impl Link {
    pub(in crate::network) fn is_up(&self) -> bool {
        self.flags.contains(LinkFlags::Up)
    }
}

pub(super) fn parse(payload: &[u8]) -> Option<Link> {
    let header = LinkHeader::parse(payload).ok()?;
    let attributes = Attributes::new(payload.get(size_of::<libc::ifinfomsg>()..)?);
    let properties = Attributes::new(attributes.get(IFLA_PROP_LIST).unwrap_or_default()).iter();
    let alternatives = properties.filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
    Some(Link {
        index: header.index,
        name: attributes.text(IFLA_IFNAME)?,
        alternatives: alternatives.filter_map(|(_, name)| text(name)).collect(),
        mac: attributes.get(IFLA_ADDRESS).unwrap_or_default().to_vec(),
        mtu: attributes.number(IFLA_MTU).unwrap_or_default(),
        flags: header.flags,
    })
}

fn setting(index: u32, flags: LinkFlags, mask: LinkFlags) -> Message {
    let header = LinkHeader { index, flags, change_mask: mask, ..Default::default() };
    Message::new(RTM_SETLINK, 0, &header)
}

impl Socket {
    /// All interfaces of this network namespace, in the order in which they were made.
    pub(in crate::network) fn links(&self) -> Result<Vec<Link>> {
        let request = Message::new(RTM_GETLINK, 0, &LinkHeader::default())
            .with_number(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        self.list(&request, RTM_NEWLINK, parse)
    }

    pub(in crate::network) fn set_mtu(&self, index: u32, mtu: u32) -> Result<()> {
        let none = LinkFlags::empty();
        self.change(&setting(index, none, none).with_number(IFLA_MTU, mtu))
    }

    /// Sets the flags in `mask` as they are in `flags`.
    pub(in crate::network) fn set_flags(&self, index: u32, flags: LinkFlags, mask: LinkFlags) -> Result<()> {
        self.change(&setting(index, flags & mask, mask))
    }

    /// See [`Socket::set_offline`].
    pub(in crate::network) fn rename(&self, link: &Link, name: &str) -> Result<bool> {
        let name = [name.as_bytes(), &[0]].concat();
        self.set_offline(link, IFLA_IFNAME, &name)
    }

    /// See [`Socket::set_offline`].
    pub(in crate::network) fn set_mac(&self, link: &Link, mac: &[u8]) -> Result<bool> {
        self.set_offline(link, IFLA_ADDRESS, mac)
    }

    /// Sets what some kernels and drivers let only a link that is down have set: a name before Linux 6.2, a MAC
    /// address without IFF_LIVE_ADDR_CHANGE. True if the link had to be taken down for it, which costs it its routes
    /// and its IPv6 addresses; it is then still down.
    fn set_offline(&self, link: &Link, kind: u16, value: &[u8]) -> Result<bool> {
        let none = LinkFlags::empty();
        let message = setting(link.index, none, none).with(kind, value);
        match self.change(&message) {
            Err(error) if error.is(Errno::EBUSY) && link.is_up() => {
                self.set_flags(link.index, none, LinkFlags::Up)?;
                self.change(&message).map(|()| true)
            }
            result => result.map(|()| false),
        }
    }
}
