//! Persistent memory: `/dev/pmemN`, which may have been there since the boot.

use crate::hotplug::{Hotplug, block::Disk};

use super::{Result, Storage};

pub(super) async fn find(storage: &Storage, hotplug: &Hotplug) -> Result<Disk> {
    let name = storage.source.strip_prefix("/dev/").unwrap_or(&storage.source);
    if !name.starts_with("pmem") {
        return Err(storage.invalid(format!("has the source {:?}, which is no /dev/pmemN", storage.source)));
    }
    Ok(hotplug.disk_by_name(name).await?)
}
