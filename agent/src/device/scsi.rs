//! A SCSI disk: by `ID:LUN`.

use crate::hotplug::Hotplug;

use super::{Device, Found, Result};

pub(super) async fn find(device: &Device, hotplug: &Hotplug) -> Result<Found> {
    Ok(device.disk(hotplug.disk_by_scsi(&device.id).await?))
}
