//! What all drivers of disks do once they have the disk.

use std::{path::Path, process::Command};

use super::{Result, Steps, Storage, StorageError, options};
use crate::storage::{error::failed_to, mapping};

/// Without a journal and with few reserved blocks: the volume lives as long as its sandbox.
const MKFS: &str = "mkfs.ext4";
const MKFS_ARGUMENTS: [&str; 9] = ["-F", "-q", "-O", "^has_journal", "-m", "0", "-i", "163840", "-I"];
const INODE_SIZE: &str = "128";

/// Mounts the file system on `disk`, made and encrypted first where the storage asks for it.
pub(super) fn place(storage: &Storage, disk: &Path, steps: &mut Steps) -> Result<()> {
    if storage.fstype.is_empty() {
        return Err(storage.invalid("has a disk and no file-system type"));
    }
    let options = options(storage)?;
    let create = storage.driver_options.iter().any(|option| option == "create_filesystem");
    let encrypted = match storage.driver_option("encryption_key") {
        None => None,
        Some("ephemeral") if create => Some(mapping::encrypt(disk, steps)?),
        Some("ephemeral") => {
            return Err(storage
                .invalid("has an ephemeral encryption key and no create_filesystem: nothing could be read"));
        }
        Some(other) => {
            return Err(storage.invalid(format!("has encryption_key={other:?}; only \"ephemeral\" is known")));
        }
    };
    let device = encrypted.as_deref().unwrap_or(disk);
    if create {
        if storage.fstype != "ext4" {
            return Err(
                storage.invalid(format!("asks for a new {:?}; only ext4 can be made", storage.fstype))
            );
        }
        make_file_system(device)?;
    }
    steps.directory(&storage.mount_point)?;
    steps.mount_device(device, &storage.mount_point, &storage.fstype, &options)
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
