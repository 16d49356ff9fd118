//! What all drivers of disks do once they have the disk.
//!
//! ```text
//!   disk -> its partition -> checked -> encrypted -> a new file system -> mounted
//! ```
//!
//! Each is left out where the storage does not ask for it; what is checked is never written.

use std::{path::Path, process::Command};

use nix::mount::MsFlags;

use super::{Result, Steps, Storage, StorageError, options};
use crate::storage::{error::failed_to, layer::Layer, mapping};

/// Without a journal and with few reserved blocks: the volume lives as long as its sandbox.
const MKFS: &str = "mkfs.ext4";
const MKFS_ARGUMENTS: [&str; 9] = ["-F", "-q", "-O", "^has_journal", "-m", "0", "-i", "163840", "-I"];
const INODE_SIZE: &str = "128";

/// The file systems that have no other way to be mounted.
const READ_ONLY: [&str; 2] = ["erofs", "squashfs"];

/// Mounts the file system on `disk`.
pub(super) fn place(storage: &Storage, disk: &Path, steps: &mut Steps) -> Result<()> {
    if storage.fstype.is_empty() {
        return Err(storage.invalid("has a disk and no file-system type"));
    }
    let mut options = options(storage)?;
    let layer = Layer::of(storage)?;
    if layer.verity.is_some() || READ_ONLY.contains(&storage.fstype.as_str()) {
        options.flags |= MsFlags::MS_RDONLY;
    }
    let create = storage.driver_options.iter().any(|option| option == "create_filesystem");
    let read_only = options.flags.contains(MsFlags::MS_RDONLY);
    if create && read_only {
        return Err(storage.invalid("asks for a new file system that nothing can be written to"));
    }
    let encrypt = match storage.driver_option("encryption_key") {
        None => false,
        Some("ephemeral") if create => true,
        Some("ephemeral") => {
            return Err(storage
                .invalid("has an ephemeral encryption key and no create_filesystem: nothing could be read"));
        }
        Some(other) => {
            return Err(storage.invalid(format!("has encryption_key={other:?}; only \"ephemeral\" is known")));
        }
    };
    if create && storage.fstype != "ext4" {
        return Err(storage.invalid(format!("asks for a new {:?}; only ext4 can be made", storage.fstype)));
    }
    let mut device = disk.to_owned();
    if let Some(number) = layer.partition {
        device = mapping::linear::partition(&device, number, read_only, steps)?;
    }
    if let Some(verity) = layer.verity {
        device = verity.check(&device, steps)?;
    }
    if encrypt {
        device = mapping::crypt::encrypt(&device, steps)?;
    }
    if create {
        make_file_system(&device)?;
    }
    steps.directory(&storage.mount_point)?;
    steps.mount_device(&device, &storage.mount_point, &storage.fstype, &options)
}

fn make_file_system(device: &Path) -> Result<()> {
    let output = Command::new(MKFS).args(MKFS_ARGUMENTS).arg(INODE_SIZE).arg(device).output();
    let output = output.map_err(failed_to(|| format!("run {MKFS} on {}", device.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(1024).collect();
    let status = output.status.to_string();
    Err(StorageError::Program { program: MKFS, path: device.to_owned(), status, output: said })
}
