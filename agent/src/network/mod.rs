//! The guest's network: interfaces, routes, neighbours and packet filter of the namespace the agent runs in.
//!
//! All state is the kernel's; nothing is kept here, so a worker that takes over has nothing to recover. Changes are
//! made one call at a time, in the order in which the calls came, because each looks first and then acts on what it
//! saw. A call that fails leaves what was there: it either records how to undo each step, or what things looked
//! like before. The work runs on the pool, over a socket of its own.

use std::{future::Future, net::IpAddr};

use tokio::sync::Mutex;

pub mod error;
mod interface;
mod iptables;
mod neighbours;
mod netlink;
pub mod prefix;
mod routes;
mod snapshot;

pub use error::Error;
use error::{failed_to, refused};
pub use iptables::Family;
pub use netlink::NetlinkError;
use netlink::{Socket, link::Link};
use prefix::Prefix;

/// The result of every network call.
pub type Result<T> = std::result::Result<T, Error>;

/// A kernel name has room for this many bytes (IFNAMSIZ, less the NUL).
pub const NAME_MAX: usize = 15;

/// An interface as a host wants it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// The name it is to have.
    pub name: String,
    /// Its index, where the host says on which device it is.
    pub index: Option<u32>,
    /// Finds the interface; with `index`, is given to it. Empty: by name.
    pub mac: Vec<u8>,
    /// 0 leaves it.
    pub mtu: u32,
    /// Whether ARP is switched off.
    pub no_arp: bool,
    /// All the addresses it is to have.
    pub addresses: Vec<Prefix>,
}

/// An interface as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Its name.
    pub name: String,
    /// Its MAC address; empty where it has none.
    pub mac: Vec<u8>,
    /// The largest packet.
    pub mtu: u32,
    /// IFF_*.
    pub flags: u32,
    /// Its addresses, IPv4 first.
    pub addresses: Vec<Prefix>,
}

/// A route. As a wish it needs a device or a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Where to; a prefix of length 0 is everywhere.
    pub destination: Prefix,
    /// Through whom.
    pub gateway: Option<IpAddr>,
    /// On which interface, by name. Empty leaves it to the gateway.
    pub device: String,
    /// The address packets are sent from.
    pub source: Option<IpAddr>,
    /// RT_SCOPE_*.
    pub scope: u8,
    /// RTNH_F_*; those that are no wish but a state are ignored.
    pub flags: u32,
    /// 0 leaves it to the interface.
    pub mtu: u32,
}

/// A neighbour to be known without asking for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Who.
    pub address: IpAddr,
    /// On which interface, by name.
    pub device: String,
    /// Its MAC address; may be empty.
    pub mac: Vec<u8>,
    /// NUD_*.
    pub state: u16,
    /// NTF_*.
    pub flags: u8,
}

/// The guest's network.
#[derive(Debug, Default)]
pub struct Network {
    /// Held for one change at a time.
    turn: Mutex<()>,
}

impl Network {
    /// Makes an interface what `wanted` says, wholly or not at all.
    pub async fn update_interface(&self, wanted: Interface) -> Result<()> {
        self.in_turn(on_socket(move |socket| interface::update(socket, &wanted))).await
    }

    /// Adds routes, or replaces those to the same destinations, all or none; answers all there are then. Others stay.
    pub async fn update_routes(&self, wanted: Vec<Route>) -> Result<Vec<Route>> {
        let work = on_socket(move |socket| {
            routes::update(socket, &wanted)?;
            routes::list(socket)
        });
        self.in_turn(work).await
    }

    /// Makes neighbours known, all or none.
    pub async fn add_neighbours(&self, wanted: Vec<Neighbour>) -> Result<()> {
        self.in_turn(on_socket(move |socket| neighbours::add(socket, &wanted))).await
    }

    /// Every interface.
    pub async fn interfaces(&self) -> Result<Vec<Present>> {
        on_socket(interface::list).await
    }

    /// Every unicast route of the main table.
    pub async fn routes(&self) -> Result<Vec<Route>> {
        on_socket(routes::list).await
    }

    /// What iptables-save prints.
    pub async fn iptables(&self, family: Family) -> Result<Vec<u8>> {
        on_pool(move || iptables::save(family)).await
    }

    /// Has iptables-restore read `rules`; answers what it printed.
    pub async fn set_iptables(&self, family: Family, rules: Vec<u8>) -> Result<Vec<u8>> {
        self.in_turn(on_pool(move || iptables::restore(family, &rules))).await
    }

    async fn in_turn<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let _turn = self.turn.lock().await;
        work.await
    }
}

async fn on_pool<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    crate::task::blocking(work).await.map_err(failed_to(|| "finish work on the pool".to_owned())).flatten()
}

async fn on_socket<T: Send + 'static>(work: impl FnOnce(&Socket) -> Result<T> + Send + 'static) -> Result<T> {
    on_pool(|| work(&Socket::open().map_err(refused(|| "open a netlink socket".to_owned()))?)).await
}

fn links(socket: &Socket) -> Result<Vec<Link>> {
    socket.links().map_err(refused(|| "list the interfaces".to_owned()))
}

/// The link called `name`, or known by it as well.
fn by_name<'a>(links: &'a [Link], name: &str) -> Option<&'a Link> {
    let known_as = |link: &&Link| link.alternatives.iter().any(|alternative| alternative == name);
    links.iter().find(|link| link.name == name).or_else(|| links.iter().find(known_as))
}

/// As [`by_name`], for one that has to be there.
fn find<'a>(links: &'a [Link], name: &str) -> Result<&'a Link> {
    by_name(links, name).ok_or_else(|| Error::LinkNotFound { wanted: format!("Name: {name}") })
}

/// Refuses a MAC address of another length than the link's: the kernel would take the first bytes of a longer one.
fn fits(link: &Link, mac: &[u8]) -> Result<()> {
    if mac.is_empty() || mac.len() == link.mac.len() {
        return Ok(());
    }
    let (has, given) = (link.mac.len(), mac.len());
    Err(Error::Invalid(format!("a MAC address on {} has {has} bytes, not {given}", link.name)))
}
