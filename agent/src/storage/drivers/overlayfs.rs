//! An overlay of directories that are there, the container's own changes on top where it asks for them.

use std::path::Path;

use super::{Result, Steps, Storage, mount_plain, options};

/// Where hosts expect what belongs to one container.
const CONTAINERS: &str = "/run/kata-containers";
/// Asks for a layer of changes, without saying where.
const WRITABLE: &str = "io.katacontainers.fs-opt.overlay-rw";
/// Names a directory to be made first.
const DIRECTORY: &str = "io.katacontainers.volume.overlayfs.create_directory";

pub(super) fn place(storage: &Storage, user: &str, steps: &mut Steps) -> Result<()> {
    let mut options = options(storage)?;
    let directories =
        storage.driver_options.iter().filter_map(|option| option.strip_prefix(DIRECTORY)?.strip_prefix('='));
    for directory in directories {
        crate::storage::place::check(Path::new(directory), Path::new("/run/berth")).map_err(|problem| {
            storage.invalid(format!("asks for the directory {directory:?}, which {problem}"))
        })?;
        steps.directory(Path::new(directory))?;
    }
    if storage.options.iter().any(|option| option == WRITABLE) {
        if user.is_empty() {
            return Err(storage.invalid("asks for a writable layer and belongs to no container"));
        }
        let own = Path::new(CONTAINERS).join(user);
        steps.directory(&own)?;
        for (option, name) in [("upperdir", "upper"), ("workdir", "work")] {
            let directory = own.join(name);
            steps.own_directory(&directory)?;
            options.add(&format!("{option}={}", directory.display()));
        }
    }
    mount_plain(storage, "overlay", &options, steps)
}
