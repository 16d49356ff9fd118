//! The root of a container put together from layers on disks: images that are read, and one file system on top
//! that takes what is written.
//!
//! Each layer is mounted in the storage's own directory, and an overlay of them where the container looks. The
//! first lower layer of the request is the topmost. Without an upper layer nothing can be written, and a single
//! lower one needs no overlay.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::MsFlags,
    sys::stat::{Mode, mkdirat},
};

use super::{Result, Steps, Storage, StorageError, disk, ephemeral, mount_plain};
use crate::{
    hotplug::block::Disk,
    storage::{
        error::failed_to,
        layer::{Directory, Layer, Role},
        options::{MAX_DATA, Options},
        place,
    },
};

/// What the upper layer has in it: what was written, and what the kernel works with.
const UPPER: &str = "upper";
const WORK: &str = "work";

/// `disks` are those of the layers, in their order.
pub(super) fn place(storage: &Storage, disks: &[Option<Disk>], steps: &mut Steps) -> Result<()> {
    let (mut upper, mut lowers, mut directories) = (None, Vec::new(), Vec::new());
    let alone = storage.layers.len() == 1;
    let own = steps.own_place();
    for (part, disk) in storage.layers.iter().zip(disks) {
        let layer = Layer::of(part)?;
        let role = layer.role_of(part)?;
        let mut part = part.clone();
        match role {
            Role::Upper => part.mount_point = own.join(UPPER),
            // Short names: all of them have to fit into one page of options.
            Role::Lower if !alone => part.mount_point = own.join(lowers.len().to_string()),
            Role::Lower => {}
        }
        let mounted = match (role, disk) {
            (Role::Upper, None) => ephemeral::place(&part, steps),
            (Role::Upper, Some(disk)) => disk::place(&part, &disk.node, steps),
            (Role::Lower, Some(disk)) => {
                part.options.push("ro".to_owned());
                disk::place(&part, &disk.node, steps)
            }
            (Role::Lower, None) => Err(part.invalid("has no device")),
        };
        mounted.map_err(|error| of_whole(storage, &part, error))?;
        match role {
            Role::Upper => upper = Some(part.mount_point),
            Role::Lower => lowers.push(part.mount_point),
        }
        directories.extend(layer.directories);
    }
    for directory in &directories {
        make(storage, directory, upper.as_deref(), &lowers)?;
    }
    match alone {
        true => Ok(()),
        false => overlay(storage, upper, &lowers, steps),
    }
}

fn overlay(storage: &Storage, upper: Option<PathBuf>, lowers: &[PathBuf], steps: &mut Steps) -> Result<()> {
    let mut options = Options { flags: MsFlags::empty(), data: String::new() };
    let lowers: Vec<_> = lowers.iter().map(|lower| lower.display().to_string()).collect();
    options.add(&format!("lowerdir={}", lowers.join(":")));
    match upper {
        None => options.flags |= MsFlags::MS_RDONLY,
        Some(upper) => {
            for (option, name) in [("upperdir", UPPER), ("workdir", WORK)] {
                let made = make_below(&upper, Path::new(name), None);
                made.map_err(failed_to(|| format!("make {name:?} in the upper layer {}", upper.display())))?;
                options.add(&format!("{option}={}", upper.join(name).display()));
            }
        }
    }
    if options.data.len() > MAX_DATA {
        return Err(storage.invalid(format!("has {} layers, more than one mount takes", lowers.len())));
    }
    mount_plain(&Storage { source: "overlay".to_owned(), ..storage.clone() }, "overlay", &options, steps)
}

/// What is wrong with a layer is wrong with the storage that a host knows.
fn of_whole(storage: &Storage, part: &Storage, error: StorageError) -> StorageError {
    match error {
        StorageError::Invalid { problem, .. } => {
            storage.invalid(format!("has a layer {:?}, which {problem}", part.source))
        }
        other => other,
    }
}

/// Makes a directory that the host asks for. What is in a mount goes with it, and needs no undoing.
fn make(storage: &Storage, asked: &Directory, upper: Option<&Path>, lowers: &[PathBuf]) -> Result<()> {
    let mount = match asked.mount.checked_sub(1) {
        None => upper,
        Some(lower) => lowers.get(lower).map(PathBuf::as_path),
    };
    let path = asked.path.display();
    let Some(mount) = mount else {
        let problem = format!("asks for the directory {path} in mount {}, which it has not", asked.mount);
        return Err(storage.invalid(problem));
    };
    make_below(mount, &asked.path, Some(asked.mode))
        .map_err(failed_to(|| format!("make {path} in the layer {}", mount.display())))
}

/// Makes `path` below `root` step by step. A layer is the host's, so no link in it is followed.
fn make_below(root: &Path, path: &Path, mode: Option<u32>) -> io::Result<()> {
    let mut at = root.to_owned();
    for name in path {
        let parent = place::open(&at)?;
        at.push(name);
        let fresh = match place::find(&at)? {
            Some(_there) => false,
            None => match mkdirat(&parent, name, Mode::from_bits_retain(0o755)) {
                Ok(()) => true,
                Err(Errno::EEXIST) => false,
                Err(errno) => return Err(errno.into()),
            },
        };
        if let Some(mode) = mode.filter(|_| fresh && at == root.join(path)) {
            let made = place::open(&at)?;
            fs::set_permissions(place::by_descriptor(&made), Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directories_are_made_in_a_layer_and_nowhere_else() {
        let dir = std::env::temp_dir().join(format!("berth-layers-{}", std::process::id()));
        fs::create_dir_all(dir.join("upper")).unwrap();
        fs::create_dir_all(dir.join("outside")).unwrap();
        let upper = dir.join("upper");
        make_below(&upper, Path::new("a/b"), Some(0o1700)).unwrap();
        make_below(&upper, Path::new("a/b"), Some(0o755)).unwrap();
        let mode = |path: &str| fs::metadata(upper.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("a/b"), mode("a")), (0o1700, 0o755), "one that is there stays as it is");
        symlink("../outside", upper.join("link")).unwrap();
        for path in ["link", "link/x"] {
            let error = make_below(&upper, Path::new(path), None).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::ELOOP as i32), "{path}");
        }
        assert_eq!(fs::read_dir(dir.join("outside")).unwrap().count(), 0);
        fs::remove_dir_all(dir).unwrap();
    }
}
