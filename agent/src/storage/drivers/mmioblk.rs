//! A virtio disk on a memory-mapped transport, by the name it will have.

use crate::hotplug::{Hotplug, block::Disk};

use super::{Result, Storage};

pub(super) async fn find(storage: &Storage, hotplug: &Hotplug) -> Result<Disk> {
    Ok(hotplug.disk_by_name(&storage.source).await?)
}
