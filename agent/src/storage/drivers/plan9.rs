//! A directory of the host over 9p, by its tag.

use super::{Result, Steps, Storage, mount_plain, options};

pub(super) fn place(storage: &Storage, steps: &mut Steps) -> Result<()> {
    if storage.source.is_empty() {
        return Err(storage.invalid("has no 9p tag as its source"));
    }
    let mut options = options(storage)?;
    // What every virtio host means, though the kernel's default is TCP.
    if !options.data.split(',').any(|option| option.starts_with("trans=")) {
        options.add("trans=virtio");
    }
    mount_plain(storage, "9p", &options, steps)
}
