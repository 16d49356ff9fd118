//! A directory of the guest's own, shared by the sandbox's containers.

use std::{fs::Permissions, os::unix::fs::PermissionsExt};

use nix::unistd::{Gid, chown};

use super::{Result, Steps, Storage};
use crate::storage::{error::failed_to, place};

const SETGID: u32 = 0o2000;

pub(super) fn place(storage: &Storage, steps: &mut Steps) -> Result<()> {
    let (mode, group) = (storage.number("mode", 8)?, storage.number("fsgid", 10)?);
    let path = &storage.mount_point;
    let failed = || format!("look up {}", path.display());
    steps.own_directory(path)?;
    let directory = place::open(path).map_err(failed_to(failed))?;
    own(&directory, path, mode, group)
}

/// Gives a directory its mode and group; a group of its own is inherited by what is made in it.
pub(super) fn own(
    directory: &impl std::os::fd::AsFd,
    path: &std::path::Path,
    mode: Option<u32>,
    group: Option<u32>,
) -> Result<()> {
    let by_descriptor = place::by_descriptor(directory);
    if let Some(group) = group {
        let given = chown(&by_descriptor, None, Some(Gid::from_raw(group)));
        given.map_err(failed_to(|| format!("give {} to the group {group}", path.display())))?;
    }
    let failed = || format!("change the mode of {}", path.display());
    let found = std::fs::metadata(&by_descriptor).map_err(failed_to(failed))?.permissions().mode();
    let mode = mode.unwrap_or(found) & 0o7777 | if group.is_some() { SETGID } else { 0 };
    std::fs::set_permissions(&by_descriptor, Permissions::from_mode(mode)).map_err(failed_to(failed))
}
