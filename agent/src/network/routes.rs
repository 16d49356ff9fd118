//! UpdateRoutes and ListRoutes.
//!
//! The wire has no metric, and to the kernel two routes to one destination with one metric are one. So the first
//! wish for a destination takes the family's usual metric and each further one the next: all are there, and the
//! first counts most. Routes that the kernel keeps for its addresses are never replaced.

use std::collections::{HashMap, HashSet};

use nix::errno::Errno;

use super::{
    Error, Result, Route,
    error::refused,
    find, links,
    netlink::{
        Message, Socket,
        route::{Entry, FLAGS, Key, NewRoute},
    },
    prefix::Prefix,
};

/// What the kernel gives an IPv6 route without a metric (IP6_RT_PRIO_USER).
const IPV6_METRIC: u32 = 1024;

pub(super) fn list(socket: &Socket) -> Result<Vec<Route>> {
    let names: HashMap<u32, String> =
        links(socket)?.into_iter().map(|link| (link.index, link.name)).collect();
    let routes = present(socket)?;
    let routes = routes.iter().flat_map(|route| route.hops.iter().map(move |hop| (route, hop)));
    let wire = routes.map(|(route, hop)| Route {
        destination: route.key.destination,
        gateway: hop.gateway,
        device: names.get(&hop.link).cloned().unwrap_or_default(),
        source: route.source,
        scope: route.scope,
        flags: hop.flags & FLAGS,
        mtu: route.mtu,
    });
    Ok(wire.collect())
}

fn present(socket: &Socket) -> Result<Vec<Entry>> {
    socket.routes().map_err(refused(|| "list the routes".to_owned()))
}

/// A wish, and the route that it comes to.
struct Step {
    wish: Route,
    made: NewRoute,
}

pub(super) fn update(socket: &Socket, wanted: &[Route]) -> Result<()> {
    let links = links(socket)?;
    let resolve = |route: &Route| {
        let link = if route.device.is_empty() { None } else { Some(find(&links, &route.device)?.index) };
        validate(route)?;
        Ok((link, route.clone()))
    };
    let wanted = wanted.iter().map(resolve).collect::<Result<Vec<_>>>()?;
    // A gateway is reached by a route on the link, which may be among the wanted ones.
    let (direct, by_gateway): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|(_, route)| route.gateway.is_none());
    let present = present(socket)?;
    make(socket, &plan(direct.into_iter().chain(by_gateway), &present), &present)
}

fn plan(wanted: impl Iterator<Item = (Option<u32>, Route)>, present: &[Entry]) -> Vec<Step> {
    let mut automatic: HashMap<Prefix, Vec<&Entry>> = HashMap::new();
    for route in present.iter().filter(|route| route.automatic) {
        automatic.entry(route.key.destination).or_default().push(route);
    }
    let mut taken = HashSet::new();
    let mut steps = Vec::new();
    for (link, wish) in wanted {
        let destination = masked(wish.destination);
        let own = automatic.get(&destination).map(Vec::as_slice).unwrap_or_default();
        if own.iter().any(|own| serves(own, link, &wish)) {
            continue;
        }
        let first = if destination.address.is_ipv6() { IPV6_METRIC } else { 0 };
        let free = |metric: &u32| {
            let key = Key { destination, metric: *metric };
            !taken.contains(&key) && !own.iter().any(|own| own.key == key)
        };
        let metric = (first..).find(free).unwrap_or(u32::MAX);
        let key = Key { destination, metric };
        taken.insert(key);
        let Route { gateway, source, scope, flags, mtu, .. } = wish;
        steps.push(Step { wish, made: NewRoute { key, link, gateway, source, scope, flags, mtu } });
    }
    steps
}

/// All of them, or none: those of a batch that are made beside one that is refused are taken back with the others.
fn make(socket: &Socket, steps: &[Step], present: &[Entry]) -> Result<()> {
    let messages: Vec<Message> = steps.iter().map(|step| step.made.made()).collect();
    let failed = |step: &Step, error| refused(|| format!("set the {}", describe(&step.wish)))(error);
    let mut done: Vec<&NewRoute> = Vec::new();
    let mut begun = 0;
    while let (Some(rest @ [_, ..]), Some(left @ [first, ..])) = (messages.get(begun..), steps.get(begun..)) {
        let outcomes = match socket.change_each(rest) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                done.extend(left.iter().map(|step| &step.made));
                return Err(undo(socket, &done, present, failed(first, error)));
            }
        };
        begun += outcomes.len();
        let mut error = None;
        for (step, outcome) in left.iter().zip(outcomes) {
            match outcome {
                Ok(()) => done.push(&step.made),
                Err(refusal) => _ = error.get_or_insert_with(|| failed(step, refusal)),
            }
        }
        if let Some(error) = error {
            return Err(undo(socket, &done, present, error));
        }
    }
    Ok(())
}

fn validate(route: &Route) -> Result<()> {
    let Route { destination, gateway, source, .. } = route;
    if route.device.is_empty() && gateway.is_none() {
        return Err(Error::Invalid(format!("the {} has neither device nor gateway", describe(route))));
    }
    let ipv4 = destination.address.is_ipv4();
    if source.is_some_and(|source| source.is_ipv4() != ipv4)
        || gateway.is_some_and(|gateway| gateway.is_ipv4() && !ipv4)
    {
        return Err(Error::Invalid(format!("the {} mixes IPv4 and IPv6", describe(route))));
    }
    Ok(())
}

/// Whether the kernel's own route does all that is wanted.
fn serves(entry: &Entry, link: Option<u32>, route: &Route) -> bool {
    let on_link = entry.hops.iter().any(|hop| Some(hop.link) == link && hop.gateway.is_none());
    let source = route.source.is_none() || route.source == entry.source;
    on_link && route.gateway.is_none() && source && (route.mtu == 0 || route.mtu == entry.mtu)
}

/// The kernel tells a destination without the bits that do not count, and refuses others.
fn masked(prefix: Prefix) -> Prefix {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    let length = u32::from(prefix.length);
    let address = match prefix.address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            IpAddr::from(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            IpAddr::from(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    };
    Prefix { address, ..prefix }
}

/// Backwards, and on beyond a step that fails. What was never made, or is gone already, is as it was.
fn undo(socket: &Socket, done: &[&NewRoute], present: &[Entry], error: Error) -> Error {
    let present: HashMap<Key, &Entry> = present.iter().map(|route| (route.key, route)).collect();
    let back = |made: &&NewRoute| present.get(&made.key).map_or_else(|| made.deleted(), |old| old.restored());
    let messages: Vec<Message> = done.iter().rev().map(back).collect();
    let mut stuck = None;
    socket.change_all(&messages, |place, error| {
        if !error.is(Errno::ESRCH) {
            let made = done.iter().rev().nth(place);
            let destination = made.map(|made| made.key.destination.to_string()).unwrap_or_default();
            stuck.get_or_insert_with(|| refused(|| format!("take the route to {destination} back"))(error));
        }
    });
    match stuck {
        Some(undoing) => Error::Stuck { error: Box::new(error), undoing: Box::new(undoing) },
        None => error,
    }
}

fn describe(route: &Route) -> String {
    let mut text = format!("route to {}", route.destination);
    if let Some(gateway) = route.gateway {
        text += &format!(" via {gateway}");
    }
    if !route.device.is_empty() {
        text += &format!(" on {}", route.device);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn destinations_keep_only_the_bits_that_count() {
        for (given, kept) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("255.255.255.255/0", "0.0.0.0/0"),
            ("fd00::1:2/64", "fd00::/64"),
            ("fd00::1", "fd00::1/128"),
            ("::ffff/0", "::/0"),
        ] {
            assert_eq!(masked(given.parse().unwrap()).to_string(), kept);
        }
    }
}
