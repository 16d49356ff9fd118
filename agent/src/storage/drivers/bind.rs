//! What is in the guest already, at a second place.

use std::os::fd::AsFd;

use nix::{libc, mount::MsFlags, sys::stat::fstat};

use super::{Result, Steps, Storage, options};
use crate::storage::{error::failed_to, place};

pub(super) fn place(storage: &Storage, steps: &mut Steps) -> Result<()> {
    let path = storage.source_path()?;
    let source = place::open(path).map_err(failed_to(|| format!("look up the source {}", path.display())))?;
    let kind = fstat(source.as_fd()).map_err(failed_to(|| format!("look at {}", path.display())))?.st_mode
        & libc::S_IFMT;
    let mut options = options(storage)?;
    if !options.data.is_empty() {
        return Err(storage.invalid(format!("is a bind mount, for which {:?} is no option", options.data)));
    }
    options.flags |= MsFlags::MS_BIND;
    match kind {
        libc::S_IFDIR => steps.directory(&storage.mount_point)?,
        _ => steps.file(&storage.mount_point)?,
    }
    steps.mount(Some(&place::by_descriptor(&source)), &storage.mount_point, "bind", &options)
}
