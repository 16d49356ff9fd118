//! The storage drivers, one file each.
//!
//! A driver works in two parts. `find` waits, on the reactor, for the device its source names. `place` makes
//! the mount, on the pool, by [`Steps`] that can all be taken back.

use std::path::Path;

use super::{
    error::{Result, StorageError},
    layer::MULTI_LAYER,
    options::Options,
    request::Storage,
    steps::Steps,
};
use crate::hotplug::{Hotplug, block::Disk};

mod bind;
mod blk;
#[cfg(target_arch = "s390x")]
mod blk_ccw;
mod disk;
pub(super) mod ephemeral;
mod erofs;
#[cfg(feature = "image-pull")]
pub(super) mod image_guest_pull;
mod local;
mod mmioblk;
mod multi_layer;
mod nvdimm;
mod overlayfs;
mod plan9;
mod scsi;
mod virtiofs;
pub(super) mod watchable;

/// What makes a storage of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    Bind,
    Blk,
    #[cfg(target_arch = "s390x")]
    BlkCcw,
    Ephemeral,
    Erofs,
    #[cfg(feature = "image-pull")]
    ImageGuestPull,
    Local,
    MmioBlk,
    MultiLayer,
    Nvdimm,
    Overlayfs,
    Plan9,
    Scsi,
    VirtioFs,
    Watchable,
}

const IMAGE_GUEST_PULL: &str = "image_guest_pull";

const DRIVERS: &[(&str, Driver)] = &[
    ("9p", Driver::Plan9),
    ("bind", Driver::Bind),
    ("blk", Driver::Blk),
    #[cfg(target_arch = "s390x")]
    ("blk-ccw", Driver::BlkCcw),
    ("ephemeral", Driver::Ephemeral),
    ("erofs", Driver::Erofs),
    (MULTI_LAYER, Driver::MultiLayer),
    #[cfg(feature = "image-pull")]
    (IMAGE_GUEST_PULL, Driver::ImageGuestPull),
    ("local", Driver::Local),
    ("mmioblk", Driver::MmioBlk),
    ("nvdimm", Driver::Nvdimm),
    ("overlayfs", Driver::Overlayfs),
    ("scsi", Driver::Scsi),
    ("virtio-fs", Driver::VirtioFs),
    ("watchable-bind", Driver::Watchable),
];

/// The drivers' names, as a host reads them in GetGuestDetails.
pub fn names() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().map(|(name, _)| *name)
}

impl Driver {
    pub(super) fn named(name: &str) -> Result<Self> {
        let found = DRIVERS.iter().find(|(known, _)| *known == name);
        found.map(|(_, driver)| *driver).ok_or_else(|| match name {
            IMAGE_GUEST_PULL => StorageError::Feature { driver: IMAGE_GUEST_PULL, feature: "image-pull" },
            _ => StorageError::Driver {
                driver: name.to_owned(),
                known: names().collect::<Vec<_>>().join(", "),
            },
        })
    }

    /// Volumes whose content is the sandbox's, not a container's: another container, or the same one started
    /// again, finds what is in them, so they stay until the sandbox goes.
    pub(super) fn stays(self) -> bool {
        matches!(self, Self::Ephemeral | Self::Local)
    }

    /// Whether what it mounts is on a disk. A layer of `erofs.multi-layer` is, as one of `blk`.
    pub(super) fn is_disk(self) -> bool {
        match self {
            Self::Blk | Self::Erofs | Self::MmioBlk | Self::MultiLayer | Self::Nvdimm | Self::Scsi => true,
            #[cfg(target_arch = "s390x")]
            Self::BlkCcw => true,
            _ => false,
        }
    }

    /// Waits for the devices: that of the storage, or of each of its layers.
    pub(super) async fn find(self, storage: &Storage, hotplug: &Hotplug) -> Result<Vec<Option<Disk>>> {
        if storage.layers.is_empty() {
            return Ok(vec![self.find_one(storage, hotplug).await?]);
        }
        let mut disks = Vec::with_capacity(storage.layers.len());
        for layer in &storage.layers {
            disks.push(Self::named(&layer.driver)?.find_one(layer, hotplug).await?);
        }
        Ok(disks)
    }

    async fn find_one(self, storage: &Storage, hotplug: &Hotplug) -> Result<Option<Disk>> {
        let disk = match self {
            Self::Blk | Self::Erofs | Self::MultiLayer => blk::find(storage, hotplug).await?,
            #[cfg(target_arch = "s390x")]
            Self::BlkCcw => blk_ccw::find(storage, hotplug).await?,
            Self::MmioBlk => mmioblk::find(storage, hotplug).await?,
            Self::Nvdimm => nvdimm::find(storage, hotplug).await?,
            Self::Scsi => scsi::find(storage, hotplug).await?,
            _ => return Ok(None),
        };
        Ok(Some(disk))
    }

    /// Mounts it.
    pub(super) fn place(
        self,
        storage: &Storage,
        disks: &[Option<Disk>],
        user: &str,
        steps: &mut Steps,
    ) -> Result<()> {
        match (self, disks.first().and_then(Option::as_ref)) {
            (Self::MultiLayer, _) => multi_layer::place(storage, disks, steps),
            (Self::Erofs, Some(disk)) => erofs::place(storage, &disk.node, steps),
            (_, Some(disk)) => disk::place(storage, &disk.node, steps),
            (Self::Bind, _) => bind::place(storage, steps),
            (Self::Ephemeral, _) => ephemeral::place(storage, steps),
            #[cfg(feature = "image-pull")]
            (Self::ImageGuestPull, _) => image_guest_pull::place(storage, steps),
            (Self::Local, _) => local::place(storage, steps),
            (Self::Overlayfs, _) => overlayfs::place(storage, user, steps),
            (Self::Plan9, _) => plan9::place(storage, steps),
            (Self::VirtioFs, _) => virtiofs::place(storage, steps),
            (Self::Watchable, _) => watchable::place(storage, steps),
            (_, None) => Err(storage.invalid("has no device")),
        }
    }
}

/// The storage's mount options.
fn options(storage: &Storage) -> Result<Options> {
    Options::parse(&storage.options).map_err(|problem| storage.invalid(problem))
}

/// Makes the mount point and mounts what needs no device.
fn mount_plain(storage: &Storage, fstype: &str, options: &Options, steps: &mut Steps) -> Result<()> {
    steps.directory(&storage.mount_point)?;
    steps.mount(Some(Path::new(&storage.source)), &storage.mount_point, fstype, options)
}
