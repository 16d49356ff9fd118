//! A SCSI disk, by `ID:LUN`.

use crate::hotplug::{Hotplug, block::Disk};

use super::{Result, Storage};

pub(super) async fn find(storage: &Storage, hotplug: &Hotplug) -> Result<Disk> {
    Ok(hotplug.disk_by_scsi(&storage.source).await?)
}
