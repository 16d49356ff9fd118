//! Devices: what a host plugged in for one container, under the numbers this guest gives it.
//!
//! A handler waits for a device by the host's name for it and answers what it is here. [`spec`] then puts the
//! guest's numbers where the configuration has the host's, in the nodes and in the device rules; [`environment`]
//! does the same for PCI addresses in `PCIDEVICE_*` variables. One file per kind of device.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::hotplug::{Hotplug, HotplugError, block::Disk};

mod blk;
#[cfg(any(target_arch = "s390x", test))]
mod blk_ccw;
pub mod cdi;
pub mod environment;
mod mmioblk;
mod nvdimm;
mod scsi;
pub mod spec;
mod vfio;
#[cfg(any(target_arch = "s390x", test))]
mod vfio_ap;

/// Why a device cannot be given to a container.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The request cannot be met in any state of the guest.
    #[error("the device {device} {problem}")]
    Invalid {
        /// Its id, or its path in the guest.
        device: String,
        /// What is wrong, as a verb and the rest.
        problem: String,
    },
    /// It is not there.
    #[error(transparent)]
    Missing(#[from] HotplugError),
}

/// The result of everything here.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// A device as a host asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// The host's name for it.
    pub id: String,
    /// One of [`handler_names`].
    pub kind: String,
    /// A path in the guest; needed where `id` is empty.
    pub vm_path: String,
    /// The node in the configuration that gets its numbers; may be empty.
    pub container_path: String,
    /// The handler's business.
    pub options: Vec<String>,
}

/// A host's PCI address and the guest's for the same device.
pub type PciAddresses = BTreeMap<String, String>;

/// A node of this guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Where it is in the guest.
    pub path: PathBuf,
    /// Whether it is a block device.
    pub block: bool,
    /// Its numbers.
    pub major: i64,
    /// Its numbers.
    pub minor: i64,
}

/// What a device turned out to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Which node of the configuration is meant; empty is none.
    pub container_path: String,
    /// Its path in the container, where that depends on the guest.
    pub new_path: Option<PathBuf>,
    /// What the container gets for it.
    pub node: Option<Node>,
    /// Further nodes it needs.
    pub companions: Vec<Node>,
    /// Its PCI functions.
    pub pci: PciAddresses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handler {
    Blk,
    #[cfg(target_arch = "s390x")]
    BlkCcw,
    MmioBlk,
    Nvdimm,
    Scsi,
    #[cfg(target_arch = "s390x")]
    VfioAp,
    VfioPci,
    VfioPciGuest,
}

const HANDLERS: &[(&str, Handler)] = &[
    ("blk", Handler::Blk),
    #[cfg(target_arch = "s390x")]
    ("blk-ccw", Handler::BlkCcw),
    ("mmioblk", Handler::MmioBlk),
    ("nvdimm", Handler::Nvdimm),
    ("scsi", Handler::Scsi),
    #[cfg(target_arch = "s390x")]
    ("vfio-ap", Handler::VfioAp),
    #[cfg(target_arch = "s390x")]
    ("vfio-ap-cold", Handler::VfioAp),
    ("vfio-pci", Handler::VfioPci),
    ("vfio-pci-gk", Handler::VfioPciGuest),
];

/// The handlers' names, as a host reads them in GetGuestDetails.
pub fn handler_names() -> impl Iterator<Item = &'static str> {
    HANDLERS.iter().map(|(name, _)| *name)
}

impl Device {
    fn invalid(&self, problem: impl Into<String>) -> DeviceError {
        let device = if self.id.is_empty() { &self.vm_path } else { &self.id };
        DeviceError::Invalid { device: format!("{device:?}"), problem: problem.into() }
    }

    fn handler(&self) -> Result<Handler> {
        let found = HANDLERS.iter().find(|(name, _)| *name == self.kind);
        let (_, handler) = found.ok_or_else(|| {
            let known = handler_names().collect::<Vec<_>>().join(", ");
            self.invalid(format!("is of the unknown type {:?}; this agent has {known}", self.kind))
        })?;
        if self.id.is_empty() && self.vm_path.is_empty() && self.options.is_empty() {
            return Err(self.invalid("has neither an id nor a vm_path"));
        }
        Ok(*handler)
    }

    fn disk(&self, disk: Disk) -> Found {
        let (major, minor) = (disk.major.cast_signed(), disk.minor.cast_signed());
        Found {
            container_path: self.container_path.clone(),
            node: Some(Node { path: disk.node, block: true, major, minor }),
            ..Found::default()
        }
    }
}

/// Waits for all of `devices`, in their order.
pub async fn find(devices: &[Device], hotplug: &Hotplug) -> Result<Vec<Found>> {
    let handlers: Vec<Handler> = devices.iter().map(Device::handler).collect::<Result<_>>()?;
    let mut found = Vec::new();
    for (device, handler) in devices.iter().zip(handlers) {
        found.push(match handler {
            Handler::Blk => blk::find(device, hotplug).await?,
            #[cfg(target_arch = "s390x")]
            Handler::BlkCcw => blk_ccw::find(device, hotplug).await?,
            Handler::MmioBlk => mmioblk::find(device, hotplug).await?,
            Handler::Nvdimm => nvdimm::find(device, hotplug).await?,
            Handler::Scsi => scsi::find(device, hotplug).await?,
            #[cfg(target_arch = "s390x")]
            Handler::VfioAp => vfio_ap::find(device, hotplug).await?,
            Handler::VfioPci => vfio::find(device, hotplug).await?,
            Handler::VfioPciGuest => vfio::find_of_guest(device, hotplug).await?,
        });
    }
    Ok(found)
}

/// The character device at `path`, once there.
fn character(path: &Path) -> std::io::Result<Option<Node>> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    if !metadata.file_type().is_char_device() {
        return Ok(None);
    }
    let number = metadata.rdev();
    Ok(Some(Node {
        path: path.to_owned(),
        block: false,
        major: nix::sys::stat::major(number).cast_signed(),
        minor: nix::sys::stat::minor(number).cast_signed(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_handler_is_for_is_told_before_anything_is_waited_for() {
        let device = Device { id: "02".into(), kind: "floppy".into(), ..Device::default() };
        let error = device.handler().unwrap_err().to_string();
        assert!(
            error.contains("\"02\" is of the unknown type \"floppy\"") && error.contains("vfio-pci-gk"),
            "{error}"
        );
        let device = Device { kind: "blk".into(), ..Device::default() };
        assert!(device.handler().unwrap_err().to_string().contains("neither an id nor a vm_path"));
    }
}
