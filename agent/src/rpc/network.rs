//! The network of the guest. These calls come before CreateSandbox, and need none.
//!
//! What hosts write is read leniently where known hosts differ (an address without prefix, a family left at its
//! default), and what cannot be understood is refused before anything is changed.

use std::net::IpAddr;

use berth_protocols::{
    agent::{
        AddARPNeighborsRequest, GetIPTablesRequest, GetIPTablesResponse, Interfaces, ListInterfacesRequest,
        ListRoutesRequest, Routes, SetIPTablesRequest, SetIPTablesResponse, UpdateInterfaceRequest,
        UpdateRoutesRequest,
    },
    types,
};

use super::{
    agent::{Agent, Method, tied},
    decode::decode,
    reply::{Reply, Status, encode},
    service::Outcome,
};
use crate::network::{Family, Interface, Neighbour, Present, Route, prefix::Prefix};

/// NUD_PERMANENT, which a neighbour without a state gets.
const PERMANENT: u16 = 0x80;

pub(super) fn update_interface(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: UpdateInterfaceRequest = decode(body)?;
    let wire =
        request.interface.into_option().ok_or_else(|| Status::invalid("UpdateInterface: no interface"))?;
    let mut wanted = parse_interface(&wire)?;
    let (network, hotplug) = (agent.network.clone(), agent.sandbox.hotplug());
    agent.mutate(method, body, async move {
        if !wire.devicePath.is_empty() {
            wanted.index = Some(hotplug.interface_by_pci_path(&wire.devicePath).await?);
        }
        network.update_interface(wanted).await?;
        // Hosts get back what they asked for.
        encode(&wire)
    })
}

pub(super) fn update_routes(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: UpdateRoutesRequest = decode(body)?;
    let routes = request.routes.into_option().ok_or_else(|| Status::invalid("UpdateRoutes: no routes"))?;
    let wanted = routes.Routes.iter().map(parse_route).collect::<Result<_, _>>()?;
    let network = agent.network.clone();
    agent.mutate(method, body, async move { encode(&wire_routes(network.update_routes(wanted).await?)) })
}

pub(super) fn add_neighbours(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: AddARPNeighborsRequest = decode(body)?;
    let neighbours =
        request.neighbors.into_option().ok_or_else(|| Status::invalid("AddARPNeighbors: no neighbours"))?;
    let wanted = neighbours.ARPNeighbors.iter().map(parse_neighbour).collect::<Result<_, _>>()?;
    let network = agent.network.clone();
    agent.mutate(method, body, async move {
        network.add_neighbours(wanted).await?;
        Ok(Reply::empty())
    })
}

pub(super) fn list_interfaces(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: ListInterfacesRequest = decode(body)?;
    let network = agent.network.clone();
    tied(method, async move {
        let interfaces = network.interfaces().await?.iter().map(wire_interface).collect();
        encode(&Interfaces { Interfaces: interfaces, ..Default::default() })
    })
}

pub(super) fn list_routes(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let _: ListRoutesRequest = decode(body)?;
    let network = agent.network.clone();
    tied(method, async move { encode(&wire_routes(network.routes().await?)) })
}

pub(super) fn get_iptables(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: GetIPTablesRequest = decode(body)?;
    let network = agent.network.clone();
    tied(method, async move {
        let data = network.iptables(family(request.is_ipv6)).await?;
        encode(&GetIPTablesResponse { data, ..Default::default() })
    })
}

pub(super) fn set_iptables(agent: &Agent, method: &Method, body: &[u8]) -> Result<Outcome, Status> {
    let request: SetIPTablesRequest = decode(body)?;
    let network = agent.network.clone();
    agent.mutate(method, body, async move {
        let data = network.set_iptables(family(request.is_ipv6), request.data).await?;
        encode(&SetIPTablesResponse { data, ..Default::default() })
    })
}

fn family(is_ipv6: bool) -> Family {
    if is_ipv6 { Family::V6 } else { Family::V4 }
}

/// But for the device (`devicePath`), which may have to be waited for.
fn parse_interface(wire: &types::Interface) -> Result<Interface, Status> {
    let mtu = u32::try_from(wire.mtu)
        .map_err(|_| Status::invalid(format_args!("the MTU {} of {:?} is too large", wire.mtu, wire.name)))?;
    Ok(Interface {
        name: wire.name.clone(),
        index: None,
        mac: parse_mac(&wire.hwAddr)?,
        mtu,
        no_arp: wire.raw_flags & libc::IFF_NOARP.cast_unsigned() != 0,
        addresses: wire.IPAddresses.iter().map(parse_address).collect::<Result<_, _>>()?,
    })
}

/// The mask is a prefix length; without one it is the address alone.
fn parse_address(wire: &types::IPAddress) -> Result<Prefix, Status> {
    let text =
        if wire.mask.is_empty() { wire.address.clone() } else { format!("{}/{}", wire.address, wire.mask) };
    text.parse().map_err(Status::from)
}

/// Empty, or six or more pairs of hexadecimal digits between colons.
fn parse_mac(text: &str) -> Result<Vec<u8>, Status> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    // The parser of numbers would take a sign.
    let pair = |octet: &str| octet.len() == 2 && octet.bytes().all(|digit| digit.is_ascii_hexdigit());
    let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok().filter(|_| pair(octet)));
    let octets: Option<Vec<u8>> = octets.collect();
    octets
        .filter(|octets| (6..=MAC_MAX).contains(&octets.len()))
        .ok_or_else(|| Status::invalid(format_args!("{text:?} is not a MAC address")))
}

/// MAX_ADDR_LEN of linux/netdevice.h: InfiniBand's have 20.
const MAC_MAX: usize = 32;

fn parse_route(wire: &types::Route) -> Result<Route, Status> {
    let gateway = ip(&wire.gateway, "gateway")?;
    // COMPAT: hosts write the source as an address or as a network.
    let source = if wire.source.is_empty() { None } else { Some(wire.source.parse::<Prefix>()?.address) };
    let everywhere = || {
        let other = gateway
            .or(source)
            .map_or(wire.family.enum_value_or_default() == types::IPFamily::v6, |ip| ip.is_ipv6());
        Prefix::all(other)
    };
    let destination = match wire.dest.as_str() {
        "" | "default" => everywhere(),
        // COMPAT: so one agent's ListRoutes tells a default route, and hosts send it back.
        "0.0.0.0" | "::" => Prefix::all(wire.dest == "::"),
        text => text.parse()?,
    };
    let scope = u8::try_from(wire.scope)
        .map_err(|_| Status::invalid(format_args!("{} is no scope of a route: 0 to 255", wire.scope)))?;
    Ok(Route {
        destination,
        gateway,
        device: wire.device.clone(),
        source,
        scope,
        flags: wire.flags,
        mtu: wire.mtu,
    })
}

fn parse_neighbour(wire: &types::ARPNeighbor) -> Result<Neighbour, Status> {
    let to = wire.toIPAddress.get_or_default();
    let address = ip(&to.address, "address of a neighbour")?;
    let address = address.ok_or_else(|| Status::invalid("AddARPNeighbors: a neighbour has no address"))?;
    let state = match u16::try_from(wire.state) {
        Ok(0) => PERMANENT,
        Ok(state) => state,
        Err(_) => return Err(Status::invalid(format_args!("{} is no state of a neighbour", wire.state))),
    };
    let [flags, ..] = wire.flags.to_le_bytes();
    Ok(Neighbour { address, device: wire.device.clone(), mac: parse_mac(&wire.lladdr)?, state, flags })
}

fn ip(text: &str, what: &str) -> Result<Option<IpAddr>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| Status::invalid(format_args!("the {what} {text:?} is not an IP address")))
}

fn wire_family(address: IpAddr) -> types::IPFamily {
    if address.is_ipv6() { types::IPFamily::v6 } else { types::IPFamily::v4 }
}

fn wire_interface(present: &Present) -> types::Interface {
    let address = |prefix: &Prefix| types::IPAddress {
        family: wire_family(prefix.address).into(),
        address: prefix.address.to_string(),
        mask: prefix.length.to_string(),
        ..Default::default()
    };
    // COMPAT: in capitals, as known agents write it.
    let mac: Vec<String> = present.mac.iter().map(|octet| format!("{octet:02X}")).collect();
    types::Interface {
        device: present.name.clone(),
        name: present.name.clone(),
        IPAddresses: present.addresses.iter().map(address).collect(),
        mtu: present.mtu.into(),
        hwAddr: mac.join(":"),
        raw_flags: present.flags,
        ..Default::default()
    }
}

fn wire_routes(routes: Vec<Route>) -> Routes {
    let wire = |route: Route| types::Route {
        dest: if route.destination.length == 0 { String::new() } else { route.destination.to_string() },
        gateway: route.gateway.map(|gateway| gateway.to_string()).unwrap_or_default(),
        device: route.device,
        source: route.source.map(|source| source.to_string()).unwrap_or_default(),
        scope: route.scope.into(),
        family: wire_family(route.destination.address).into(),
        flags: route.flags,
        mtu: route.mtu,
        ..Default::default()
    };
    Routes { Routes: routes.into_iter().map(wire).collect(), ..Default::default() }
}
