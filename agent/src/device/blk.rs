//! A virtio disk: by PCI path, or by its node where the host knows that.

use crate::hotplug::Hotplug;

use super::{Device, Found, Result};

pub(super) async fn find(device: &Device, hotplug: &Hotplug) -> Result<Found> {
    Ok(device.disk(match device.id.is_empty() {
        true => hotplug.disk_by_name(&device.vm_path).await?,
        false => hotplug.disk_by_pci_path(&device.id).await?,
    }))
}
