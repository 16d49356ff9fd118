//! A virtio disk on a channel subsystem: by its bus id.
//!
//! s390x only. The look-up is compiled for tests everywhere, against a recorded sysfs tree.

use crate::hotplug::Hotplug;

use super::{Device, Found, Result};

#[cfg_attr(test, allow(dead_code, reason = "called on s390x only; what it calls is tested in hotplug::ccw"))]
pub(super) async fn find(device: &Device, hotplug: &Hotplug) -> Result<Found> {
    Ok(device.disk(hotplug.disk_by_ccw(&device.id).await?))
}
