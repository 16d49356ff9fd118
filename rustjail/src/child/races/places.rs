//! Places that something is put at, exchanged before it is.

use std::{
    fs::{self, File},
    io::Read,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use serde_json::json;

use super::Arena;

/// In one tree, each of which is a try.
const PLACES: u32 = 100;

/// CVE-2021-30465, CVE-2024-45310, CVE-2019-18837
#[test]
fn a_mount_destination_swapped_for_a_link_stays_beneath_the_root() {
    let mut arena = Arena::new();
    arena.directory("source");
    arena.directory("rootfs/volume");
    let mounts: Vec<_> = (0..PLACES)
        .map(|number| match number % 4 {
            0 => (format!("/volume/made{number}/below"), "bind"),
            1 => (format!("/volume/tmpfs{number}"), "tmpfs"),
            2 => (format!("/volume/other{number}"), "bind"),
            _ => ("/volume".to_owned(), "bind"),
        })
        .map(|(destination, kind)| {
            let options = if kind == "bind" { json!(["bind"]) } else { json!([]) };
            json!({"destination": destination, "type": kind, "source": "source", "options": options})
        })
        .collect();
    arena.set("/mounts", json!(mounts));
    let swapper = arena.swap_with_link("rootfs/volume", "../outside");
    let lost = |volume: PathBuf| {
        let _ = fs::create_dir(volume.join("made"));
        fs::remove_dir(arena.at("outside/made")).is_ok()
    };
    arena.loses(|| directory(arena.at("rootfs/volume")), lost);
    arena.try_often(&swapper, PLACES, || (), || assert!(!Path::new("/outside/file").exists()));
}

/// CVE-2026-41579, CVE-2026-47766, CVE-2026-88264
#[test]
fn devices_are_never_made_where_a_swapped_dev_leads() {
    let arena = Arena::new();
    arena.directory("rootfs/elsewhere");
    let elsewhere = arena.at("rootfs/elsewhere");
    let dev = File::open(arena.at("rootfs/dev")).unwrap();
    let made = format!("/proc/self/fd/{}", dev.as_raw_fd());
    let swapper = arena.swap_with_link("rootfs/dev", "elsewhere");
    let lost = |dev: PathBuf| {
        fs::write(dev.join("null"), "").unwrap();
        let _ = fs::remove_file(format!("{made}/null"));
        fs::remove_file(elsewhere.join("null")).is_ok()
    };
    arena.loses(|| directory(arena.at("rootfs/dev")), lost);
    let empty = || {
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        // So that all are made anew by the next.
        fs::read_dir(&made).unwrap().for_each(|node| fs::remove_file(node.unwrap().path()).unwrap());
    };
    arena.try_often(&swapper, 1, empty, || ());
}

/// CVE-2019-19921, CVE-2023-27561, CVE-2023-28642
#[test]
fn proc_is_mounted_on_a_directory_of_that_name_or_not_at_all() {
    let mut arena = Arena::new();
    arena.directory("rootfs/fake");
    arena.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
    let fake = number(&arena.at("rootfs/fake"));
    let swapper = arena.swap_with_link("rootfs/proc", "fake");
    arena.loses(|| directory(arena.at("rootfs/proc")), |proc| number(&proc) == fake);
    let empty = || assert_eq!(fs::read_dir("/fake").unwrap().count(), 0);
    arena.try_often(&swapper, 1, || (), empty);
}

/// CVE-2025-54867: the root file system's own path, which is looked up again where hooks are to find the tree.
#[test]
fn a_root_swapped_for_a_link_is_the_one_or_the_other_as_a_whole() {
    let mut arena = Arena::new();
    for root in ["rootfs", "decoy"] {
        arena.directory(&format!("{root}/tmp"));
        arena.file(&format!("{root}/which"), root);
        arena.file(&format!("{root}/etc/which"), root);
    }
    arena.set("/mounts", json!([{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}]));
    arena.set("/hooks", json!({"createContainer": [{"path": "/bin/true"}]}));
    let swapper = arena.swap_with_link("rootfs", "decoy");
    let root = arena.at("rootfs");
    arena.loses(|| Some(number(&root)), |before| number(&root) != before);
    // Neither directory has the other's tree over it.
    let beside = || {
        assert_eq!(fs::read_to_string(arena.at("decoy/which")).unwrap(), "decoy");
        for name in ["rootfs", "link"] {
            assert!(which(&arena.at(name)).is_none_or(|which| which == "rootfs"));
        }
    };
    let inside = || {
        let which = fs::read_to_string("/which").unwrap();
        assert_eq!(which, fs::read_to_string("/etc/which").unwrap());
    };
    arena.try_often(&swapper, 1, beside, inside);
}

/// What tree is found at `root`, if that is a directory at the moment.
fn which(root: &Path) -> Option<String> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    // With O_PATH the access mode says nothing.
    let root = File::options().read(true).custom_flags(flags).open(root).ok()?;
    let mut which = String::new();
    File::open(format!("/proc/self/fd/{}/which", root.as_raw_fd()))
        .unwrap()
        .read_to_string(&mut which)
        .unwrap();
    Some(which)
}

/// `path`, if a directory is found there and no link.
fn directory(path: PathBuf) -> Option<PathBuf> {
    path.symlink_metadata().unwrap().is_dir().then_some(path)
}

/// Which file it is.
fn number(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}
