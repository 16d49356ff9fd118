//! A directory of the host over virtio-fs, by its tag.

use super::{Result, Steps, Storage, mount_plain, options};

pub(super) fn place(storage: &Storage, steps: &mut Steps) -> Result<()> {
    if storage.source.is_empty() {
        return Err(storage.invalid("has no virtio-fs tag as its source"));
    }
    mount_plain(storage, "virtiofs", &options(storage)?, steps)
}
