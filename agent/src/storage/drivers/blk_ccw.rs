//! A virtio disk on a channel subsystem, by its bus id `0.<0-3>.<hex>`.

use crate::hotplug::{Hotplug, block::Disk};

use super::{Result, Storage};

pub(super) async fn find(storage: &Storage, hotplug: &Hotplug) -> Result<Disk> {
    Ok(hotplug.disk_by_ccw(&storage.source).await?)
}
