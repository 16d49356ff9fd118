//! Persistent memory: by its node.

use crate::hotplug::Hotplug;

use super::{Device, Found, Result};

pub(super) async fn find(device: &Device, hotplug: &Hotplug) -> Result<Found> {
    if device.vm_path.is_empty() {
        return Err(device.invalid("has no vm_path"));
    }
    Ok(device.disk(hotplug.disk_by_name(&device.vm_path).await?))
}
