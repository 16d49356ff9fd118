//! Interfaces, routes and neighbours of real network namespaces with veth devices; iproute2 says what came of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::process::{Command, Output};

use berth::{Agent, Guest, code, ctl_binary};
use berth_protocols::{
    agent::{
        ARPNeighbors, AddARPNeighborsRequest, ListInterfacesRequest, ListRoutesRequest, Routes,
        UpdateInterfaceRequest, UpdateRoutesRequest,
    },
    types::{ARPNeighbor, IPAddress, IPFamily, Interface, Route},
};
use protobuf::MessageField;
use serde_json::Value;
use ttrpc::{Code, context::with_timeout};

const MAC: &str = "02:00:00:00:00:01";

/// An agent without a sandbox, as hosts configure it, with a veth pair: `veth0` has [`MAC`], `peer0` is the other end.
async fn agent() -> (Agent, Guest) {
    let agent = Agent::start().await;
    agent.ip(&format!("link add veth0 address {MAC} type veth peer name peer0"));
    agent.ip("link set peer0 up");
    let guest = agent.client().await;
    (agent, guest)
}

fn interface(name: &str, mac: &str, addresses: &[&str]) -> Interface {
    let address = |text: &&str| {
        let (address, mask) = text.split_once('/').unwrap();
        let family = if address.contains(':') { IPFamily::v6 } else { IPFamily::v4 };
        IPAddress { family: family.into(), address: address.into(), mask: mask.into(), ..Default::default() }
    };
    Interface {
        name: name.into(),
        hwAddr: mac.into(),
        IPAddresses: addresses.iter().map(address).collect(),
        ..Default::default()
    }
}

async fn update(guest: &Guest, interface: &Interface) -> ttrpc::Result<Interface> {
    let request =
        UpdateInterfaceRequest { interface: MessageField::some(interface.clone()), ..Default::default() };
    guest.agent.update_interface(with_timeout(0), &request).await
}

fn route(destination: &str, gateway: &str, device: &str) -> Route {
    let family = if destination.contains(':') || gateway.contains(':') { IPFamily::v6 } else { IPFamily::v4 };
    let (dest, gateway, device) = (destination.into(), gateway.into(), device.into());
    Route { dest, gateway, device, family: family.into(), ..Default::default() }
}

async fn set_routes(guest: &Guest, routes: &[Route]) -> ttrpc::Result<Vec<Route>> {
    let routes = Routes { Routes: routes.to_vec(), ..Default::default() };
    let request = UpdateRoutesRequest { routes: MessageField::some(routes), ..Default::default() };
    guest.agent.update_routes(with_timeout(0), &request).await.map(|routes| routes.Routes)
}

/// Without those that the kernel makes some time after a link is up.
fn settled(routes: &[Route]) -> Vec<&Route> {
    routes.iter().filter(|route| !route.dest.starts_with("fe80::")).collect()
}

async fn neighbours(guest: &Guest, neighbours: &[ARPNeighbor]) -> ttrpc::Result<()> {
    let neighbors = ARPNeighbors { ARPNeighbors: neighbours.to_vec(), ..Default::default() };
    let request = AddARPNeighborsRequest { neighbors: MessageField::some(neighbors), ..Default::default() };
    guest.agent.add_arp_neighbors(with_timeout(0), &request).await.map(drop)
}

fn link<'a>(links: &'a Value, name: &str) -> &'a Value {
    let links = links.as_array().unwrap();
    links.iter().find(|link| link["ifname"] == name).unwrap_or_else(|| panic!("no {name} in {links:?}"))
}

/// The addresses of a link that somebody gave it.
fn addresses(agent: &Agent, name: &str) -> Vec<String> {
    let links = agent.ip_json("address show");
    let infos = link(&links, name)["addr_info"].as_array().unwrap().clone();
    let given = infos.iter().filter(|info| info["scope"] != "link");
    given.map(|info| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"])).collect()
}

/// `ip route`'s lines for one destination.
fn lines(agent: &Agent, arguments: &str) -> Vec<String> {
    agent.ip(arguments).lines().map(|line| line.trim().to_owned()).collect()
}

#[tokio::test]
async fn an_interface_gets_its_name_addresses_and_settings() {
    let (agent, guest) = agent().await;
    let mut wanted = interface("eth0", MAC, &["10.1.0.2/24", "fd00::2/64"]);
    (wanted.mtu, wanted.raw_flags) = (1400, 0x80);
    assert_eq!(update(&guest, &wanted).await.unwrap(), wanted, "the reply is the request");
    let links = agent.ip_json("link show");
    let eth0 = link(&links, "eth0");
    assert_eq!((&eth0["address"], &eth0["mtu"]), (&Value::from(MAC), &Value::from(1400)));
    let flags = eth0["flags"].to_string();
    assert!(flags.contains("NOARP") && flags.contains("\"UP\""), "{flags}");
    assert_eq!(addresses(&agent, "eth0"), ["10.1.0.2/24", "fd00::2/64"]);
    let info = link(&agent.ip_json("address show"), "eth0")["addr_info"].clone();
    assert_eq!(info[0]["broadcast"], "10.1.0.255");
    assert!(
        info.as_array().unwrap().iter().all(|info| info["tentative"].is_null() || info["scope"] == "link"),
        "{info}"
    );

    // Once more is no change; a different set replaces, and nothing else is lost.
    agent.ip("route add 10.9.0.0/16 via 10.1.0.1");
    update(&guest, &wanted).await.unwrap();
    assert_eq!(
        lines(&agent, "route show 10.9.0.0/16").len(),
        1,
        "an update that changes nothing costs no route"
    );
    wanted = interface("eth0", MAC, &["10.1.0.3/24", "10.1.0.4/24", "10.2.0.1/32", "fd00::3/64"]);
    update(&guest, &wanted).await.unwrap();
    let mut now = addresses(&agent, "eth0");
    now.sort();
    assert_eq!(now, ["10.1.0.3/24", "10.1.0.4/24", "10.2.0.1/32", "fd00::3/64"]);
    let links = agent.ip_json("link show");
    assert!(!link(&links, "eth0")["flags"].to_string().contains("NOARP"));
    assert_eq!(link(&links, "eth0")["mtu"], 1400, "an MTU of 0 leaves it");
}

#[tokio::test]
async fn a_taken_name_is_swapped_and_its_owner_keeps_everything_else() {
    let (agent, guest) = agent().await;
    agent.ip("link add eth0 address 02:00:00:00:00:99 type veth peer name far0");
    agent.ip("link set eth0 up");
    agent.ip("link set far0 up");
    agent.ip("address add 10.7.0.1/24 dev eth0");
    agent.ip("-6 address add fd07::1/64 dev eth0 nodad");
    agent.ip("route add 10.8.0.0/16 via 10.7.0.2");
    update(&guest, &interface("eth0", MAC, &["10.1.0.2/24"])).await.unwrap();
    let links = agent.ip_json("link show");
    assert_eq!(link(&links, "eth0")["address"], MAC);
    assert_eq!(link(&links, "veth0")["address"], "02:00:00:00:00:99");
    assert_eq!(addresses(&agent, "veth0"), ["10.7.0.1/24", "fd07::1/64"]);
    assert_eq!(lines(&agent, "route show 10.8.0.0/16"), ["10.8.0.0/16 via 10.7.0.2 dev veth0"]);
}

#[tokio::test]
async fn links_are_found_by_mac_then_by_name() {
    let (agent, guest) = agent().await;
    let upper = "02:00:00:00:00:0A";
    agent.ip(&format!("link set veth0 address {upper}"));
    update(&guest, &interface("eth5", upper, &[])).await.unwrap();
    assert_eq!(link(&agent.ip_json("link show"), "eth5")["address"], "02:00:00:00:00:0a");
    // By name, and then with the MAC address that was asked for.
    update(&guest, &interface("eth5", "02:00:00:00:00:0b", &[])).await.unwrap();
    assert_eq!(link(&agent.ip_json("link show"), "eth5")["address"], "02:00:00:00:00:0b");
    let nowhere = interface("eth9", "02:00:00:00:00:77", &["10.1.0.2/24"]);
    let (status, message) = code(update(&guest, &nowhere).await);
    assert_eq!(status, Code::NOT_FOUND);
    assert!(message.contains("Link not found"), "hosts ask again on these words: {message}");
}

#[tokio::test]
async fn interfaces_are_listed_as_they_are() {
    let (agent, guest) = agent().await;
    update(&guest, &interface("eth0", MAC, &["10.1.0.2/24", "fd00::2/64"])).await.unwrap();
    let listed = guest.agent.list_interfaces(with_timeout(0), &ListInterfacesRequest::new()).await.unwrap();
    let names: Vec<&str> = listed.Interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let links = agent.ip_json("link show");
    let known: Vec<&str> =
        links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap()).collect();
    assert_eq!(names.len(), known.len());
    assert!(known.iter().all(|name| names.contains(name)), "{names:?} {known:?}");
    let eth0 = listed.Interfaces.iter().find(|interface| interface.name == "eth0").unwrap();
    assert_eq!((eth0.hwAddr.as_str(), eth0.mtu), ("02:00:00:00:00:01", 1500));
    let told: Vec<_> = eth0
        .IPAddresses
        .iter()
        .map(|ip| (ip.family.unwrap(), ip.address.as_str(), ip.mask.as_str()))
        .collect();
    assert!(told.contains(&(IPFamily::v4, "10.1.0.2", "24")), "{told:?}");
    assert!(told.contains(&(IPFamily::v6, "fd00::2", "64")), "{told:?}");
}

#[tokio::test]
async fn a_failed_update_leaves_everything_as_it_was() {
    let (agent, guest) = agent().await;
    agent.ip("link add eth0 address 02:00:00:00:00:99 type veth peer name far0");
    agent.ip("link set far0 up");
    for name in ["eth0", "veth0"] {
        agent.ip(&format!("link set {name} up"));
    }
    agent.ip("address add 10.7.0.1/24 dev eth0");
    agent.ip("-6 address add fd07::1/64 dev eth0 nodad");
    agent.ip("route add 10.8.0.0/16 via 10.7.0.2");
    agent.ip("address add 10.5.0.1/24 dev veth0");
    agent.ip("-6 address add fd05::1/64 dev veth0 nodad");
    agent.ip("route add default via 10.5.0.254");
    agent.ip("link property add dev far0 altname spoken0");
    let before = agent.network_state();

    // Each fails one step later than the one before.
    let multicast =
        Interface { name: "veth0".into(), hwAddr: "01:00:5e:00:00:01".into(), ..Default::default() };
    let mut mtu = interface("eth0", MAC, &["10.1.0.2/24"]);
    mtu.mtu = 70_000;
    let mut first_address = interface("eth0", MAC, &["fd00::9/64", "10.1.0.2/24"]);
    first_address.mtu = 1000;
    let last_address = interface("eth0", MAC, &["10.1.0.2/24", "10.1.0.3/24", "fd00::9/64", "ff02::1/64"]);
    let cases = [
        (interface("spoken0", MAC, &[]), "another name"),
        (multicast, "MAC address"),
        (mtu, "MTU"),
        (first_address, "fd00::9"),
        (last_address, "ff02::1"),
    ];
    for (wanted, named) in cases {
        let (_, message) = code(update(&guest, &wanted).await);
        assert!(message.contains(named), "{message:?} does not name {named:?}");
        assert!(!message.contains("undone"), "{message}");
        assert_eq!(agent.network_state(), before, "after {message:?}");
    }
}

/// Row H8 of the reliability tests.
#[tokio::test]
async fn what_cannot_be_an_interface_is_refused() {
    let (agent, guest) = agent().await;
    let before = agent.network_state();
    let long = "a".repeat(16);
    let mut cases: Vec<Interface> = ["", ".", "..", "a b", "a/b", "a:b", "a%b", "a\nb", "a\0b", &long]
        .map(|name| interface(name, MAC, &[]))
        .to_vec();
    for mac in [
        "02:00",
        "zz:00:00:00:00:01",
        "020000000001",
        "02:00:00:00:00:1",
        "+2:00:00:00:00:01",
        &"00:".repeat(4000),
    ] {
        cases.push(interface("eth0", mac, &[]));
    }
    for (address, mask) in [
        ("10.0.0.1", "33"),
        ("10.0.0.1", "-1"),
        ("10.0.0.1", "255.255.255.0"),
        ("nowhere", "24"),
        ("fd00::1", "129"),
        ("", "24"),
        ("10.0.0.1;reboot", "24"),
    ] {
        let mut interface = interface("eth0", MAC, &[]);
        interface.IPAddresses =
            vec![IPAddress { address: address.into(), mask: mask.into(), ..Default::default() }];
        cases.push(interface);
    }
    let mut huge = interface("eth0", MAC, &[]);
    huge.mtu = u64::MAX;
    cases.push(huge);
    for case in cases {
        let (status, message) = code(update(&guest, &case).await);
        assert_eq!(status, Code::INVALID_ARGUMENT, "{case:?}: {message}");
    }
    let none = guest.agent.update_interface(with_timeout(0), &UpdateInterfaceRequest::new()).await;
    assert_eq!(code(none).0, Code::INVALID_ARGUMENT);
    assert_eq!(agent.network_state(), before);
}

#[tokio::test]
async fn routes_of_every_kind() {
    let (agent, guest) = agent().await;
    update(&guest, &interface("eth0", MAC, &["10.1.0.2/24", "fd00::2/64"])).await.unwrap();
    let link_route = Route { scope: 253, ..route("192.168.5.0/24", "", "eth0") };
    let sourced = Route { source: "10.1.0.2".into(), mtu: 1300, ..route("10.20.0.0/16", "10.1.0.9", "eth0") };
    let onlink = Route { flags: 4 | 16, ..route("10.30.0.0/16", "172.31.0.1", "eth0") };
    let wanted = [
        // Before the route by which its gateway is reached.
        route("10.40.0.0/16", "192.168.5.1", "eth0"),
        route("", "10.1.0.1", "eth0"),
        route("", "fd00::1", "eth0"),
        link_route,
        sourced,
        onlink,
        route("fd77::/48", "fd00::5", "eth0"),
        route("10.50.0.0/16", "fd00::7", "eth0"),
        // A default route in another's words.
        route("10.60.0.1", "10.1.0.1", ""),
        // What the kernel has anyhow.
        Route { scope: 253, ..route("10.1.0.0/24", "", "eth0") },
    ];
    let listed = set_routes(&guest, &wanted).await.unwrap();
    let v4 = lines(&agent, "-4 route show");
    let v6 = lines(&agent, "-6 route show");
    for line in [
        "default via 10.1.0.1 dev eth0",
        "192.168.5.0/24 dev eth0 scope link",
        "10.20.0.0/16 via 10.1.0.9 dev eth0 src 10.1.0.2 mtu 1300",
        "10.30.0.0/16 via 172.31.0.1 dev eth0 onlink",
        "10.40.0.0/16 via 192.168.5.1 dev eth0",
        "10.50.0.0/16 via inet6 fd00::7 dev eth0",
        "10.60.0.1 via 10.1.0.1 dev eth0",
        "10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.2",
    ] {
        assert!(v4.iter().any(|got| got == line), "{line:?} is not in {v4:#?}");
    }
    assert_eq!(v4.len(), 8, "{v4:#?}");
    assert!(v6.iter().any(|line| line.starts_with("default via fd00::1 dev eth0")), "{v6:?}");
    assert!(v6.iter().any(|line| line.starts_with("fd77::/48 via fd00::5 dev eth0")), "{v6:?}");

    let find = |dest: &str, family| {
        listed.iter().find(|route| route.dest == dest && route.family.unwrap() == family)
    };
    let default = find("", IPFamily::v4).unwrap();
    assert_eq!((default.gateway.as_str(), default.device.as_str()), ("10.1.0.1", "eth0"));
    assert_eq!(find("", IPFamily::v6).unwrap().gateway, "fd00::1");
    let sourced = find("10.20.0.0/16", IPFamily::v4).unwrap();
    assert_eq!((sourced.source.as_str(), sourced.mtu), ("10.1.0.2", 1300));
    assert_eq!(find("10.30.0.0/16", IPFamily::v4).unwrap().flags, 4);
    assert_eq!(find("192.168.5.0/24", IPFamily::v4).unwrap().scope, 253);

    // What was told can be said again, and changes nothing.
    let before = agent.network_state();
    let again = set_routes(&guest, &listed).await.unwrap();
    assert_eq!(settled(&again), settled(&listed));
    assert_eq!(agent.network_state(), before);
    let listed = guest.agent.list_routes(with_timeout(0), &ListRoutesRequest::new()).await.unwrap();
    assert_eq!(settled(&listed.Routes), settled(&again));
}

#[tokio::test]
async fn two_default_routes_stay_two_and_the_first_counts() {
    let (agent, guest) = agent().await;
    agent.ip("link add veth1 type veth peer name peer1");
    agent.ip("link set peer1 up");
    update(&guest, &interface("eth0", MAC, &["10.1.0.2/24", "fd01::2/64"])).await.unwrap();
    update(&guest, &interface("veth1", "", &["10.2.0.2/24", "fd02::2/64"])).await.unwrap();
    let wanted = [
        route("0.0.0.0/0", "10.2.0.1", "veth1"),
        route("0.0.0.0/0", "10.1.0.1", "eth0"),
        route("::/0", "fd02::1", "veth1"),
        route("::/0", "fd01::1", "eth0"),
    ];
    for _ in 0..2 {
        set_routes(&guest, &wanted).await.unwrap();
        let v4 = lines(&agent, "-4 route show default");
        assert_eq!(v4, ["default via 10.2.0.1 dev veth1", "default via 10.1.0.1 dev eth0 metric 1"]);
        assert_eq!(lines(&agent, "-6 route show default").len(), 2);
    }
    assert!(agent.ip("route get 8.8.8.8").contains("dev veth1"));
}

#[tokio::test]
async fn a_failed_route_takes_the_others_back() {
    let (agent, guest) = agent().await;
    update(&guest, &interface("eth0", MAC, &["10.1.0.2/24"])).await.unwrap();
    agent.ip("route add default via 10.1.0.1 mtu 1280");
    agent.ip("route add 10.8.0.0/16 nexthop via 10.1.0.3 weight 1 nexthop via 10.1.0.4 weight 2");
    let before = agent.network_state();
    let unreachable = [
        route("", "10.1.0.77", "eth0"),
        route("10.8.0.0/16", "", "eth0"),
        route("10.6.0.0/16", "10.1.0.3", "eth0"),
        route("10.7.0.0/16", "203.0.113.1", "eth0"),
    ];
    let (_, message) = code(set_routes(&guest, &unreachable).await);
    assert!(message.contains("10.7.0.0/16") && message.contains("203.0.113.1"), "{message}");
    assert!(!message.contains("undone") && !message.contains("back"), "{message}");
    assert_eq!(agent.network_state(), before);

    for bad in [
        route("10.3.0.0/16", "", ""),
        route("10.3.0.0/33", "", "eth0"),
        route("fd00::/64", "10.1.0.1", "eth0"),
        route("10.3.0.0/16", "nobody", "eth0"),
        Route { source: "fd00::1".into(), ..route("10.3.0.0/16", "", "eth0") },
        Route { scope: 256, ..route("10.3.0.0/16", "", "eth0") },
    ] {
        let (status, message) =
            code(set_routes(&guest, &[route("10.6.0.0/16", "10.1.0.3", "eth0"), bad]).await);
        assert_eq!(status, Code::INVALID_ARGUMENT, "{message}");
    }
    let (status, message) = code(set_routes(&guest, &[route("10.3.0.0/16", "", "nowhere")]).await);
    assert_eq!(status, Code::NOT_FOUND, "{message}");
    let none = guest.agent.update_routes(with_timeout(0), &UpdateRoutesRequest::new()).await;
    assert_eq!(code(none).0, Code::INVALID_ARGUMENT);
    assert_eq!(agent.network_state(), before);
}

/// Row R10 of the reliability tests.
#[tokio::test]
async fn four_thousand_routes() {
    let (agent, guest) = agent().await;
    update(&guest, &interface("eth0", MAC, &["10.1.0.2/24"])).await.unwrap();
    let wanted: Vec<Route> = (0..4096u32)
        .map(|n| route(&format!("172.{}.{}.0/28", 16 + n / 256, n % 256), "10.1.0.1", "eth0"))
        .collect();
    let listed = set_routes(&guest, &wanted).await.unwrap();
    assert_eq!(listed.iter().filter(|route| route.gateway == "10.1.0.1").count(), 4096);
    assert_eq!(agent.ip("route show via 10.1.0.1").lines().count(), 4096);
    assert_eq!(settled(&set_routes(&guest, &wanted).await.unwrap()), settled(&listed));

    // The last one fails, and all of them are taken back.
    let before = agent.network_state();
    let mut more: Vec<Route> = (0..4096u32)
        .map(|n| route(&format!("10.{}.{}.0/28", 16 + n / 256, n % 256), "10.1.0.1", "eth0"))
        .collect();
    more.push(route("10.99.0.0/16", "203.0.113.1", "eth0"));
    code(set_routes(&guest, &more).await);
    assert_eq!(agent.network_state(), before);
}

#[tokio::test]
async fn neighbours_are_known_all_or_none() {
    let (agent, guest) = agent().await;
    update(&guest, &interface("eth0", MAC, &["10.1.0.2/24", "fd00::2/64"])).await.unwrap();
    let neighbour = |address: &str, mac: &str, state: i32| ARPNeighbor {
        toIPAddress: MessageField::some(IPAddress { address: address.into(), ..Default::default() }),
        device: "eth0".into(),
        lladdr: mac.into(),
        state,
        ..Default::default()
    };
    neighbours(
        &guest,
        &[
            neighbour("10.1.0.1", "02:00:00:00:01:01", 0),
            neighbour("fd00::1", "02:00:00:00:01:02", 0x80),
            neighbour("10.1.0.9", "02:00:00:00:01:03", 0x40),
        ],
    )
    .await
    .unwrap();
    let known = |agent: &Agent| agent.ip("neighbour show nud all");
    for line in [
        "10.1.0.1 dev eth0 lladdr 02:00:00:00:01:01 PERMANENT",
        "fd00::1 dev eth0 lladdr 02:00:00:00:01:02 PERMANENT",
        "10.1.0.9 dev eth0 lladdr 02:00:00:00:01:03 NOARP",
    ] {
        assert!(known(&agent).contains(line), "{line:?} is not in {}", known(&agent));
    }
    agent.inside(&["sysctl", "-w", "net.ipv6.conf.eth0.disable_ipv6=1"]);
    // Known already is replaced; with a bad one at the end it is as before.
    let bad = [
        neighbour("10.1.0.1", "02:00:00:00:09:09", 0),
        neighbour("10.1.0.7", "02:00:00:00:09:07", 0),
        neighbour("fd00::8", "02:00:00:00:09:08", 0),
    ];
    let before = agent.network_state();
    let (_, message) = code(neighbours(&guest, &bad).await);
    assert!(message.contains("fd00::8"), "{message}");
    assert_eq!(agent.network_state(), before);
    neighbours(&guest, &bad[..2]).await.unwrap();
    assert!(known(&agent).contains("10.1.0.1 dev eth0 lladdr 02:00:00:00:09:09 PERMANENT"));

    for bad in [
        neighbour("", "", 0),
        neighbour("x", "", 0),
        neighbour("10.1.0.1", "junk", 0),
        neighbour("10.1.0.1", "02:00:00:00:09:07:08:09", 0),
        neighbour("10.1.0.1", "", -1),
    ] {
        assert_eq!(code(neighbours(&guest, &[bad]).await).0, Code::INVALID_ARGUMENT);
    }
}

fn ctl(agent: &Agent, arguments: &str) -> Output {
    let mut command = Command::new(ctl_binary());
    command.arg("--address").arg(format!("unix://{}", agent.socket().display()));
    command.args(arguments.split_whitespace()).output().unwrap()
}

#[tokio::test]
async fn berthctl_makes_these_calls() {
    let (agent, _) = agent().await;
    let said = |arguments: &str| {
        let output = ctl(&agent, arguments);
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    said(&format!("interface eth0 --mac {MAC} --ip 10.1.0.2/24 --ip fd00::2/64 --mtu 1400"));
    assert!(
        said("interfaces")
            .lines()
            .any(|line| line.starts_with("eth0") && line.contains("10.1.0.2/24 fd00::2/64"))
    );
    let json: Value = serde_json::from_str(&said("--json interfaces")).unwrap();
    let eth0 = json.as_array().unwrap().iter().find(|interface| interface["name"] == "eth0").unwrap();
    assert_eq!((&eth0["mtu"], &eth0["addresses"][0]), (&Value::from(1400), &Value::from("10.1.0.2/24")));
    assert!(said("route default --via 10.1.0.1 --dev eth0").contains("default via 10.1.0.1 dev eth0"));
    said("neighbour 10.1.0.9 02:00:00:00:00:09 --dev eth0");
    assert!(agent.ip("neighbour").contains("10.1.0.9 dev eth0 lladdr 02:00:00:00:00:09 PERMANENT"));
    let routes: Value = serde_json::from_str(&said("--json routes")).unwrap();
    assert!(routes.as_array().unwrap().iter().any(|route| route["gateway"] == "10.1.0.1"), "{routes}");

    let tree = agent.dir().join("tree");
    std::fs::create_dir_all(tree.join("inner")).unwrap();
    std::fs::write(tree.join("inner/big"), vec![7; (2 << 20) + 1]).unwrap();
    std::os::unix::fs::symlink("inner/big", tree.join("link")).unwrap();
    said(&format!("cp {} c1/tree", tree.display()));
    let copied = agent.shared().join("c1/tree");
    assert_eq!(std::fs::read(copied.join("link")).unwrap(), vec![7; (2 << 20) + 1]);
    let refused = ctl(&agent, &format!("cp {} /etc/berth", tree.display()));
    assert_eq!(refused.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not below"), "{refused:?}");
}
