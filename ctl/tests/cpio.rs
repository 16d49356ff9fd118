//! Archives as the real cpio sees them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
};

use berthctl::{
    cpio::{Archive, Error},
    vmm::workdir::WorkDir,
};
use nix::{
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::mkfifo,
};

fn unpack(archive: &[u8], into: &Path) {
    fs::create_dir_all(into).unwrap();
    let mut cpio = Command::new("cpio");
    cpio.args(["--extract", "--make-directories", "--preserve-modification-time", "--quiet"])
        .current_dir(into);
    let mut cpio = cpio.stdin(Stdio::piped()).spawn().expect("cpio is installed");
    cpio.stdin.take().unwrap().write_all(archive).unwrap();
    assert!(cpio.wait().unwrap().success());
}

fn archive_of(source: &Path, name: &str) -> Vec<u8> {
    let mut archive = Archive::after(Vec::new(), 0).unwrap();
    archive.directories(Path::new(name).parent().unwrap()).unwrap();
    archive.tree(source, Path::new(name)).unwrap();
    archive.finish().unwrap()
}

#[test]
fn everything_an_initrd_can_hold_comes_back() {
    let dir = WorkDir::new().unwrap();
    let source = dir.join("source");
    fs::create_dir_all(source.join("deep/er")).unwrap();
    fs::set_permissions(source.join("deep"), Permissions::from_mode(0o1770)).unwrap();
    let contents: Vec<u8> = (0..300_001_u32).map(|at| (at % 251) as u8).collect();
    fs::write(source.join("deep/er/data"), &contents).unwrap();
    fs::set_permissions(source.join("deep/er/data"), Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(source.join("deep/er/data"), source.join("another name")).unwrap();
    fs::write(source.join("empty"), "").unwrap();
    std::os::unix::fs::chown(source.join("empty"), Some(1234), Some(4321)).unwrap();
    symlink("../nowhere at all", source.join("link")).unwrap();
    mkfifo(&source.join("fifo"), Mode::from_bits_truncate(0o600)).unwrap();
    mknod(&source.join("null"), SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 3)).unwrap();
    mknod(&source.join("disk"), SFlag::S_IFBLK, Mode::from_bits_truncate(0o600), makedev(254, 300)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();

    let out = dir.join("out");
    unpack(&archive_of(&source, "bundles/main/rootfs"), &out);
    let root = out.join("bundles/main/rootfs");
    let at = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();

    assert_eq!(fs::read(root.join("deep/er/data")).unwrap(), contents);
    assert_eq!(at("deep/er/data").mode() & 0o7777, 0o4751);
    assert_eq!(at("deep").mode() & 0o7777, 0o1770);
    assert_eq!(at("another name").ino(), at("deep/er/data").ino());
    assert_eq!(at("deep/er/data").nlink(), 2);
    assert_eq!(at("deep/er/data").mtime(), fs::metadata(source.join("deep/er/data")).unwrap().mtime());
    assert_eq!((at("empty").len(), at("empty").uid(), at("empty").gid()), (0, 1234, 4321));
    assert_eq!(fs::read_link(root.join("link")).unwrap(), Path::new("../nowhere at all"));
    assert!(at("fifo").file_type().is_fifo());
    assert!(at("null").file_type().is_char_device());
    assert_eq!(at("null").rdev(), makedev(1, 3));
    assert!(at("disk").file_type().is_block_device());
    assert_eq!(at("disk").rdev(), makedev(254, 300));
    assert!(!root.join("socket").exists());
}

#[test]
fn the_same_tree_gives_the_same_archive() {
    let dir = WorkDir::new().unwrap();
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    for name in ["b", "a", "c"] {
        fs::write(source.join(name), name).unwrap();
    }
    assert_eq!(archive_of(&source, "x/y"), archive_of(&source, "x/y"));
}

#[test]
fn an_archive_starts_where_the_kernel_looks_for_it() {
    for before in [0_u64, 1, 3, 4, 511, 512, 513] {
        let archive = Archive::after(Vec::new(), before).unwrap().finish().unwrap();
        let start = archive.windows(6).position(|window| window == b"070701").unwrap();
        assert_eq!((before + start as u64) % 512, 0);
        assert!(archive[..start].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_file_that_cannot_fit_is_refused_by_name() {
    let dir = WorkDir::new().unwrap();
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    File::create(source.join("huge")).unwrap().set_len(1 << 32).unwrap();
    let mut archive = Archive::after(std::io::sink(), 0).unwrap();
    let error = archive.tree(&source, Path::new("x")).unwrap_err();
    assert!(matches!(&error, Error::TooLarge { path } if path.ends_with("huge")), "{error}");
}
