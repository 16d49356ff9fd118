//! UpdateInterface: find the link, give it its name, address and settings.
//!
//! ```text
//!   find -> remember -> MAC -> name (swapped with whoever has it) -> MTU -> flags, up -> addresses
//!               ^             '----------------- any of them fails ------------------------'
//!               '------------------------ put back what was remembered <------'
//! ```
//!
//! Where the kernel takes MAC or name only from a link that is down, the routes and IPv6 addresses that this costs
//! are given back afterwards, those of the link that lost its name too.

use std::{fs, path::Path};

use netlink_packet_route::link::LinkFlags;

use super::{
    Error, Interface, NAME_MAX, Present, Result, by_name,
    error::refused,
    fits, links,
    netlink::Socket,
    netlink::link::Link,
    prefix::Prefix,
    snapshot::{Snapshot, spare_name},
};

pub(super) fn list(socket: &Socket) -> Result<Vec<Present>> {
    let addresses = socket.addresses().map_err(refused(|| "list the addresses".to_owned()))?;
    let present = |link: Link| Present {
        addresses: addresses
            .iter()
            .filter(|address| address.link == link.index)
            .map(|address| address.prefix)
            .collect(),
        name: link.name,
        mac: link.mac,
        mtu: link.mtu,
        flags: link.flags.bits(),
    };
    Ok(links(socket)?.into_iter().map(present).collect())
}

pub(super) fn update(socket: &Socket, wanted: &Interface) -> Result<()> {
    validate_name(&wanted.name)?;
    let links = links(socket)?;
    let link = find(&links, wanted)?;
    fits(link, &wanted.mac)?;
    let holder = by_name(&links, &wanted.name).filter(|holder| holder.index != link.index);
    if let Some(holder) = holder
        && holder.name != wanted.name
    {
        let text =
            format!("{:?} is another name of the interface {}, which keeps it", wanted.name, holder.name);
        return Err(Error::Invalid(text));
    }
    let before = Snapshot::take(socket, std::iter::once(link).chain(holder))?;
    let Err(error) = apply(socket, link, holder, wanted, &before) else { return Ok(()) };
    Err(match before.restore(socket) {
        Ok(()) => error,
        Err(undoing) => Error::Stuck { error: Box::new(error), undoing: Box::new(undoing) },
    })
}

fn validate_name(name: &str) -> Result<()> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%');
    if name.is_empty() || name.len() > NAME_MAX || matches!(name, "." | "..") || name.contains(bad) {
        let text = format!(
            "{name:?} cannot be an interface's name: 1 to {NAME_MAX} bytes, without space, '/', ':' or '%'"
        );
        return Err(Error::Invalid(text));
    }
    Ok(())
}

/// By index, else by MAC address, else by name. Of several links with one MAC address, such as a VLAN and what it
/// is on, it is the one that has the name already, or the oldest.
fn find<'a>(links: &'a [Link], wanted: &Interface) -> Result<&'a Link> {
    let not_found = |wanted: String| Error::LinkNotFound { wanted };
    if let Some(index) = wanted.index {
        let link = links.iter().find(|link| link.index == index);
        return link.ok_or_else(|| not_found(format!("Index: {index}")));
    }
    let same = links.iter().filter(|link| !wanted.mac.is_empty() && link.mac == wanted.mac);
    if let Some(link) = same.min_by_key(|link| (link.name != wanted.name, link.index)) {
        return Ok(link);
    }
    by_name(links, &wanted.name).ok_or_else(|| not_found(format!("Name: {}", wanted.name)))
}

fn apply(
    socket: &Socket,
    link: &Link,
    holder: Option<&Link>,
    wanted: &Interface,
    before: &Snapshot,
) -> Result<()> {
    let name = &wanted.name;
    let mut fell = false;
    if !wanted.mac.is_empty() && wanted.mac != link.mac {
        let set = socket.set_mac(link, &wanted.mac);
        fell |= set.map_err(refused(|| format!("set the MAC address of {}", link.name)))?;
    }
    if link.name != *name {
        fell |= rename(socket, link, holder, name)?;
    }
    if wanted.mtu != 0 && wanted.mtu != link.mtu {
        let set = socket.set_mtu(link.index, wanted.mtu);
        set.map_err(refused(|| format!("set the MTU of {name} to {}", wanted.mtu)))?;
    }
    let no_arp = if wanted.no_arp { LinkFlags::Noarp } else { LinkFlags::empty() };
    let set = socket.set_flags(link.index, no_arp | LinkFlags::Up, LinkFlags::Noarp | LinkFlags::Up);
    set.map_err(refused(|| format!("bring {name} up")))?;
    set_addresses(socket, link.index, wanted)?;
    if fell { before.revive(socket, holder.map(|holder| holder.index)) } else { Ok(()) }
}

/// True if a link had to be taken down for it.
fn rename(socket: &Socket, link: &Link, holder: Option<&Link>, name: &str) -> Result<bool> {
    let rename = |link: &Link, to: &str| {
        socket.rename(link, to).map_err(refused(|| format!("rename {} to {to}", link.name)))
    };
    let Some(holder) = holder else { return rename(link, name) };
    let mut fell = rename(holder, &spare_name(holder.index))?;
    fell |= rename(link, name)?;
    fell |= rename(holder, &link.name)?;
    Ok(fell)
}

/// Makes the addresses of a link exactly the wanted ones, but for those the kernel made itself.
fn set_addresses(socket: &Socket, link: u32, wanted: &Interface) -> Result<()> {
    let name = &wanted.name;
    let usable = !wanted.addresses.iter().any(|prefix| prefix.address.is_ipv6()) || ipv6_is_on();
    let wanted: Vec<Prefix> =
        wanted.addresses.iter().copied().filter(|prefix| usable || prefix.address.is_ipv4()).collect();
    let listed = || {
        let addresses = socket.addresses().map_err(refused(|| format!("list the addresses of {name}")))?;
        Ok(addresses.into_iter().filter(|address| address.link == link).collect::<Vec<_>>())
    };
    let surplus = |address: &&super::netlink::address::Address| {
        !address.automatic && (address.peer.is_some() || !wanted.contains(&address.prefix))
    };
    let mut present = listed()?;
    if present.iter().any(|address| surplus(&address)) {
        // With an IPv4 address its secondaries may go: each is looked for again, whether as surplus or as wanted.
        while let Some(address) = present.iter().find(surplus) {
            let deleted = socket.delete_address(address);
            deleted.map_err(refused(|| format!("remove {} from {name}", address.prefix)))?;
            present = listed()?;
        }
    }
    for prefix in wanted {
        if !present.iter().any(|address| address.prefix == prefix && address.peer.is_none()) {
            socket
                .add_address(link, prefix)
                .map_err(refused(|| format!("give {name} the address {prefix}")))?;
        }
    }
    Ok(())
}

/// Whether interfaces can have IPv6 addresses: neither left out of the kernel nor disabled for all.
fn ipv6_is_on() -> bool {
    let conf = Path::new("/proc/sys/net/ipv6/conf");
    let disabled = |which: &str| {
        let flag = fs::read_to_string(conf.join(which).join("disable_ipv6"));
        flag.map_or(true, |flag| flag.trim() == "1")
    };
    !(disabled("all") && disabled("default"))
}
