//! A partition of a disk as a device of its own (dm-linear).
//!
//! Partitions of layers are mapped here instead of waited for: the kernel shows those of a disk only when it was
//! built to know the table, and a disk under a mapping cannot have a partition mounted beside it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use super::{Place, SECTOR, Target, map};
use crate::storage::{
    error::{Result, StorageError, failed_to},
    gpt,
    steps::Steps,
};

/// Makes partition `number` of `disk` a device; answers its node.
pub(in crate::storage) fn partition(
    disk: &Path,
    number: u32,
    read_only: bool,
    steps: &mut Steps,
) -> Result<PathBuf> {
    let place = Place::of(disk)?;
    // Only whole disks say; what stands on one has the usual blocks.
    let block = fs::read_to_string(format!("/sys/dev/block/{}/queue/logical_block_size", place.number));
    let block = block.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(SECTOR);
    let mut file = File::open(disk).map_err(failed_to(|| format!("open {}", disk.display())))?;
    let found = gpt::find(&mut file, block, number).map_err(|problem| StorageError::Unusable {
        device: disk.to_owned(),
        problem: Box::new(problem.into()),
    })?;
    let parameters = format!("{} {}", place.number, found.start / SECTOR);
    let target = Target { kind: "linear", sectors: found.length / SECTOR, parameters, read_only };
    let name = format!("berth-part-{}-{number}-{}", place.label(), steps.record.sequence);
    map(disk, &name, target, steps)
}
