//! What a few links looked like, to make them look like that again.
//!
//! Not a list of undone steps: taking a link down for its name costs it routes and addresses in one stroke, and
//! what is missing afterwards is only seen by comparing.

use std::collections::HashSet;

use netlink_packet_route::link::LinkFlags;
use nix::errno::Errno;

use super::{
    Result,
    error::refused,
    links,
    netlink::{
        Message, NetlinkError, Socket,
        address::Address,
        link::Link,
        route::{Entry, Key},
    },
};

/// The settings that UpdateInterface makes, and what may be lost by making them.
#[derive(Debug)]
pub(super) struct Snapshot {
    links: Vec<Link>,
    addresses: Vec<Address>,
    routes: Vec<Entry>,
}

/// The flags that are ours to set.
const FLAGS: LinkFlags = LinkFlags::Up.union(LinkFlags::Noarp);

/// A name nobody else gives, for a link between two names.
pub(super) fn spare_name(index: u32) -> String {
    format!("berth{index:x}")
}

impl Snapshot {
    pub(super) fn take<'a>(socket: &Socket, links: impl Iterator<Item = &'a Link>) -> Result<Self> {
        let links: Vec<Link> = links.cloned().collect();
        let among = |index: u32| links.iter().any(|link| link.index == index);
        let mut addresses = socket.addresses().map_err(refused(|| "list the addresses".to_owned()))?;
        addresses.retain(|address| among(address.link));
        let mut routes = socket.routes().map_err(refused(|| "list the routes".to_owned()))?;
        routes.retain(|route| !route.automatic && route.hops.iter().any(|hop| among(hop.link)));
        Ok(Self { links, addresses, routes })
    }

    /// Makes everything as it was.
    pub(super) fn restore(&self, socket: &Socket) -> Result<()> {
        self.restore_names(socket)?;
        for (link, now) in self.with_present(socket)? {
            let name = &link.name;
            if now.mac != link.mac {
                let set = socket.set_mac(&now, &link.mac);
                set.map_err(refused(|| format!("set the MAC address of {name} back")))?;
            }
            if now.mtu != link.mtu {
                let set = socket.set_mtu(link.index, link.mtu);
                set.map_err(refused(|| format!("set the MTU of {name} back")))?;
            }
            let set = socket.set_flags(link.index, link.flags, FLAGS);
            set.map_err(refused(|| format!("set the flags of {name} back")))?;
            self.remove_new_addresses(socket, link)?;
        }
        self.restore_addresses(socket, |_| true)?;
        self.restore_routes(socket)
    }

    /// Gives links that were down for a moment what they lost by it: `holder`, which was to lose its name only, all
    /// of it, and the other the routes that its new addresses still allow.
    pub(super) fn revive(&self, socket: &Socket, holder: Option<u32>) -> Result<()> {
        if let Some(link) = self.links.iter().find(|link| Some(link.index) == holder) {
            let set = socket.set_flags(link.index, link.flags, FLAGS);
            set.map_err(refused(|| format!("bring {} up again", link.name)))?;
            self.restore_addresses(socket, |address| Some(address.link) == holder)?;
        }
        match self.restore_routes(socket) {
            Err(super::Error::Kernel { source: NetlinkError::Refused { .. }, .. }) => Ok(()),
            result => result,
        }
    }

    /// Every link with what it is now.
    fn with_present(&self, socket: &Socket) -> Result<Vec<(&Link, Link)>> {
        let now = links(socket)?;
        let find = |link: &Link| now.iter().find(|now| now.index == link.index).cloned();
        Ok(self.links.iter().filter_map(|link| Some((link, find(link)?))).collect())
    }

    /// By way of spare names, so that the order does not matter.
    fn restore_names(&self, socket: &Socket) -> Result<()> {
        for pass in [spare_name, |_| String::new()] {
            for (link, now) in self.with_present(socket)? {
                let spare = pass(link.index);
                let name = if spare.is_empty() { &link.name } else { &spare };
                if now.name != link.name {
                    socket
                        .rename(&now, name)
                        .map_err(refused(|| format!("rename {} to {name}", now.name)))?;
                }
            }
        }
        Ok(())
    }

    fn remove_new_addresses(&self, socket: &Socket, link: &Link) -> Result<()> {
        let addresses = socket.addresses().map_err(refused(|| "list the addresses".to_owned()))?;
        let is_new = |address: &&Address| {
            let known = |old: &Address| {
                (old.link, old.prefix, old.peer) == (address.link, address.prefix, address.peer)
            };
            address.link == link.index && !address.automatic && !self.addresses.iter().any(known)
        };
        for address in addresses.iter().filter(is_new) {
            match socket.delete_address(address) {
                // A secondary address goes with its primary.
                Err(error) if error.is(Errno::EADDRNOTAVAIL) => {}
                result => {
                    result.map_err(refused(|| format!("remove {} from {}", address.prefix, link.name)))?
                }
            }
        }
        Ok(())
    }

    fn restore_addresses(&self, socket: &Socket, which: impl Fn(&Address) -> bool) -> Result<()> {
        for address in self.addresses.iter().filter(|address| !address.automatic && which(address)) {
            let restored = socket.restore_address(address);
            restored.map_err(refused(|| format!("give the address {} back", address.prefix)))?;
        }
        Ok(())
    }

    /// Those that are missing. The ones through a gateway come last: the gateway must be reachable first.
    fn restore_routes(&self, socket: &Socket) -> Result<()> {
        let present = socket.routes().map_err(refused(|| "list the routes".to_owned()))?;
        let present: HashSet<Key> = present.iter().map(|route| route.key).collect();
        let missing = self.routes.iter().filter(|route| !present.contains(&route.key));
        let (by_gateway, direct): (Vec<&Entry>, Vec<&Entry>) =
            missing.partition(|route| route.hops.iter().any(|hop| hop.gateway.is_some()));
        let missing: Vec<&Entry> = direct.into_iter().chain(by_gateway).collect();
        let messages: Vec<Message> = missing.iter().map(|route| route.restored()).collect();
        let mut failed = None;
        socket.change_all(&messages, |place, error| {
            failed.get_or_insert((missing.get(place), error));
        });
        match failed {
            Some((route, error)) => {
                let destination = route.map(|route| route.key.destination.to_string()).unwrap_or_default();
                Err(refused(|| format!("give the route to {destination} back"))(error))
            }
            None => Ok(()),
        }
    }
}
