//! Places that are hidden, and what they are hidden behind, exchanged meanwhile.

use std::{
    fs::{self, File},
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::json;

use super::{Arena, Swapper};
use crate::sys::mount::{self, FileSystem};

/// CVE-2025-31133, CVE-2025-62161
#[test]
fn what_is_masked_is_masked_whatever_its_cover_was_swapped_for() {
    let mut arena = Arena::new();
    for file in ["secret/a", "secret/b", "bait"] {
        arena.file(&format!("rootfs/{file}"), "secret");
    }
    let null = arena.at("rootfs/dev/null");
    mknod(&null, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 3)).unwrap();
    arena.set("/linux/maskedPaths", json!(["/secret/a", "/secret/b"]));
    let swapper = arena.swap_with_link("rootfs/dev/null", "../bait");
    let check = || null.symlink_metadata().unwrap().file_type().is_char_device().then_some(());
    arena.loses(check, |()| fs::metadata(&null).unwrap().is_file());
    let masked = || {
        for path in ["/secret/a", "/secret/b"] {
            assert_eq!(fs::metadata(path).unwrap().rdev(), makedev(1, 3), "{path}");
        }
    };
    arena.try_often(&swapper, 1, || (), masked);
}

/// The masked path itself swapped: a cover lands beneath the root or nowhere.
#[test]
fn a_masked_path_swapped_for_a_link_covers_nothing_outside() {
    const PLACES: u32 = 100;
    let mut arena = Arena::new();
    arena.file("rootfs/secret/file", "");
    let paths: Vec<_> = (0..PLACES).map(|number| ["/secret/file", "/secret"][number as usize % 2]).collect();
    arena.set("/linux/maskedPaths", json!(paths)).set("/linux/readonlyPaths", json!(["/secret"]));
    let swapper = arena.swap_with_link("rootfs/secret", "../outside");
    let secret = arena.at("rootfs/secret");
    let check = || secret.symlink_metadata().unwrap().is_dir().then_some(());
    arena.loses(check, |()| fs::read_to_string(secret.join("file")).unwrap() == "outside\n");
    let untouched = || assert!(!Path::new("/outside").exists());
    arena.try_often(&swapper, PLACES, || (), untouched);
}

/// Who exchanges the directory that procfs is on takes procfs with it. What has to be masked in it is masked in it
/// nevertheless, wherever it is found: `version` is a regular file until it is.
#[test]
fn procfs_is_masked_whatever_its_directory_is_called_by_then() {
    let mut arena = Arena::new();
    arena.directory("rootfs/decoy");
    arena.set("/mounts", json!([{"destination": "/proc", "type": "proc", "source": "proc"}]));
    arena.set("/linux/maskedPaths", json!(["/proc/version"]));
    let proc = arena.at("rootfs/proc");
    let swapper = Swapper::new(proc.clone(), arena.at("rootfs/decoy"));
    let lost = |()| {
        arena.aside(|| {
            let mounted = FileSystem::open("proc").unwrap().mount(0).unwrap();
            mount::attach(mounted.as_fd(), File::open(&proc).unwrap().as_fd()).unwrap();
            !proc.join("version").exists()
        })
    };
    arena.loses(|| Some(()), lost);
    let masked = || {
        for _ in 0..4 {
            assert!(!Path::new("/proc/version").is_file() && !Path::new("/decoy/version").is_file());
        }
    };
    let tally = arena.try_often(&swapper, 1, || (), masked);
    assert!(tally.refused.is_empty());
}
