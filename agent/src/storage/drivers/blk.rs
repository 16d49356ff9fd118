//! A virtio disk, by its PCI path or its node.

use crate::hotplug::{Hotplug, block::Disk};

use super::{Result, Storage};

pub(super) async fn find(storage: &Storage, hotplug: &Hotplug) -> Result<Disk> {
    let source = storage.source.as_str();
    Ok(match source.starts_with('/') {
        true => hotplug.disk_by_name(source).await?,
        false => hotplug.disk_by_pci_path(source).await?,
    })
}
