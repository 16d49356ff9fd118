//! Commands about the guest's network.

use std::io::Read;

use berth_protocols::{
    agent::SetIPTablesRequest,
    types::{ARPNeighbor, IPAddress, IPFamily, Interface, Route},
};
use protobuf::MessageField;
use serde_json::json;

use super::{Error, Result, connect, ui};
use crate::cli::{self, Global, Iptables};

/// IFF_NOARP.
const NO_ARP: u32 = 0x80;
/// RTNH_F_ONLINK.
const ON_LINK: u32 = 4;

pub(super) async fn interfaces(global: &Global) -> Result<i32> {
    let interfaces = connect(global).await?.list_interfaces().await?;
    if global.json {
        let value = |interface: &Interface| {
            json!({
                "name": interface.name,
                "mac": interface.hwAddr,
                "mtu": interface.mtu,
                "flags": interface.raw_flags,
                "addresses": addresses(interface),
            })
        };
        return ui::print(&json!(interfaces.iter().map(value).collect::<Vec<_>>()).to_string());
    }
    let line = |interface: &Interface| {
        let Interface { name, hwAddr, mtu, .. } = interface;
        let line = format!("{name:<15} {hwAddr:<17} mtu {mtu:<6} {}", addresses(interface).join(" "));
        line.trim_end().to_owned()
    };
    ui::print(&interfaces.iter().map(line).collect::<Vec<_>>().join("\n"))
}

fn addresses(interface: &Interface) -> Vec<String> {
    interface.IPAddresses.iter().map(|address| format!("{}/{}", address.address, address.mask)).collect()
}

pub(super) async fn interface(global: &Global, interface: cli::Interface) -> Result<i32> {
    let address = |(address, mask): (String, String)| IPAddress {
        family: family(address.contains(':')).into(),
        address,
        mask,
        ..Default::default()
    };
    let wanted = Interface {
        name: interface.name,
        hwAddr: interface.mac,
        devicePath: interface.device_path,
        IPAddresses: interface.addresses.into_iter().map(address).collect(),
        mtu: interface.mtu,
        raw_flags: if interface.no_arp { NO_ARP } else { 0 },
        ..Default::default()
    };
    connect(global).await?.update_interface(wanted).await?;
    Ok(0)
}

fn family(ipv6: bool) -> IPFamily {
    if ipv6 { IPFamily::v6 } else { IPFamily::v4 }
}

pub(super) async fn routes(global: &Global) -> Result<i32> {
    print_routes(global, &connect(global).await?.list_routes().await?)
}

pub(super) async fn route(global: &Global, route: cli::Route) -> Result<i32> {
    let ipv6 = route.ipv6 || route.destination.contains(':') || route.via.contains(':');
    let wanted = Route {
        dest: if route.destination == "default" { String::new() } else { route.destination },
        gateway: route.via,
        device: route.dev,
        source: route.src,
        mtu: route.mtu,
        flags: if route.onlink { ON_LINK } else { 0 },
        family: family(ipv6).into(),
        ..Default::default()
    };
    print_routes(global, &connect(global).await?.update_routes(vec![wanted]).await?)
}

fn print_routes(global: &Global, routes: &[Route]) -> Result<i32> {
    if global.json {
        let value = |route: &Route| {
            json!({
                "destination": route.dest,
                "gateway": route.gateway,
                "device": route.device,
                "source": route.source,
                "scope": route.scope,
                "family": format!("{:?}", route.family.enum_value_or_default()),
                "flags": route.flags,
                "mtu": route.mtu,
            })
        };
        return ui::print(&json!(routes.iter().map(value).collect::<Vec<_>>()).to_string());
    }
    let line = |route: &Route| {
        let ipv6 = route.family.enum_value_or_default() == IPFamily::v6;
        let mut line = match (route.dest.as_str(), ipv6) {
            ("", false) => "default".to_owned(),
            ("", true) => "default (IPv6)".to_owned(),
            (destination, _) => destination.to_owned(),
        };
        let mtu = if route.mtu == 0 { String::new() } else { route.mtu.to_string() };
        let words = [("via", &route.gateway), ("dev", &route.device), ("src", &route.source), ("mtu", &mtu)];
        for (word, value) in words.iter().filter(|(_, value)| !value.is_empty()) {
            line += &format!(" {word} {value}");
        }
        line
    };
    ui::print(&routes.iter().map(line).collect::<Vec<_>>().join("\n"))
}

pub(super) async fn neighbour(global: &Global, neighbour: cli::Neighbour) -> Result<i32> {
    let address = IPAddress {
        family: family(neighbour.ip.contains(':')).into(),
        address: neighbour.ip,
        ..Default::default()
    };
    let wanted = ARPNeighbor {
        toIPAddress: MessageField::some(address),
        device: neighbour.dev,
        lladdr: neighbour.mac,
        ..Default::default()
    };
    connect(global).await?.add_neighbours(vec![wanted]).await?;
    Ok(0)
}

pub(super) async fn iptables(global: &Global, iptables: Iptables) -> Result<i32> {
    match iptables {
        Iptables::Save { ipv6 } => {
            let rules = connect(global).await?.iptables(ipv6).await?;
            let rules = String::from_utf8_lossy(&rules);
            if global.json {
                ui::print(&json!({ "rules": rules }).to_string())
            } else {
                ui::print(rules.trim_end())
            }
        }
        Iptables::Restore { ipv6 } => {
            let mut data = Vec::new();
            let read = std::io::stdin().read_to_end(&mut data);
            read.map_err(|source| Error::Local { action: "read the rules from standard input", source })?;
            let request = SetIPTablesRequest { is_ipv6: ipv6, data, ..Default::default() };
            connect(global).await?.set_iptables(&request).await?;
            Ok(0)
        }
    }
}
