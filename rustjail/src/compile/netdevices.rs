//! Network devices of the machine that a container is given.

use oci_spec::runtime::Linux;

use super::{CompileError, NamespaceKind, namespaces};
use crate::{
    plan::Namespaces,
    rtnetlink::{self, NetDevice},
};

/// `IFNAMSIZ` of `linux/if.h`, less the NUL.
const MAX_NAME: usize = 15;

/// Those of `linux.netDevices`, as they are now.
pub(super) fn of_container(has: &Namespaces, linux: Option<&Linux>) -> Result<Vec<NetDevice>, CompileError> {
    let wanted = linux.and_then(|linux| linux.net_devices().as_ref());
    let mut wanted: Vec<(&str, &str)> = wanted
        .into_iter()
        .flatten()
        .map(|(name, device)| {
            let new = device.name().as_deref().filter(|new| !new.is_empty());
            (name.as_str(), new.unwrap_or(name))
        })
        .collect();
    wanted.sort_unstable();
    for (index, (name, new)) in wanted.iter().enumerate() {
        [name, new].into_iter().try_for_each(|name| check(name))?;
        if wanted.iter().take(index).any(|(_, other)| other == new) {
            return Err(CompileError::invalid("linux.netDevices", new, "is the new name of two devices"));
        }
        namespaces::require(has, NamespaceKind::Network, format!("linux.netDevices {name:?}"))?;
    }
    let describe = |(name, new): (&str, &str)| {
        rtnetlink::describe(name, new)
            .map_err(|source| CompileError::NetDevice { name: name.to_owned(), source })
    };
    wanted.into_iter().map(describe).collect()
}

/// As the kernel's dev_valid_name; `%` would have it choose a number.
fn check(name: &str) -> Result<(), CompileError> {
    let fine = !matches!(name, "" | "." | "..")
        && name.len() <= MAX_NAME
        && !name.chars().any(|c| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control());
    if fine { Ok(()) } else { Err(CompileError::invalid("linux.netDevices", name, "is no device name")) }
}
