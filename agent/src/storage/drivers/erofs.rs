//! A read-only image (EROFS) on a disk, which is found as `blk` finds its own.

use std::path::Path;

use super::{Result, Steps, Storage, disk};

const FSTYPE: &str = "erofs";

pub(super) fn place(storage: &Storage, disk: &Path, steps: &mut Steps) -> Result<()> {
    match storage.fstype.as_str() {
        "" | FSTYPE => disk::place(&Storage { fstype: FSTYPE.to_owned(), ..storage.clone() }, disk, steps),
        other => Err(storage.invalid(format!("is of the driver erofs and has the type {other:?}"))),
    }
}
