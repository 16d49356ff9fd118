//! Drivers of disks.

use std::{
    fs,
    future::{Future, poll_fn},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    pin::pin,
    task::Poll,
    time::Instant,
};

use berth_agent::storage::{FsGroup, StorageError};
use nix::sys::stat::{Mode, SFlag, mknod};

use crate::bench::{Loop, PATIENCE, mounts, on_bench, on_patient_bench};

#[test]
fn a_disk_is_mounted_and_keeps_what_was_written() {
    on_bench(async |bench| {
        let disk = Loop::formatted(&bench.dir, "ext4", 16);
        let before = mounts();
        for (driver, user) in [("blk", "c1"), ("mmioblk", "c2"), ("blk", "c3")] {
            let storage = bench.storage(driver, &disk.node, "ext4", "deep/er/volume");
            bench.storages.acquire(user, vec![storage]).await.unwrap();
            let file = bench.at("deep/er/volume/file");
            if user != "c1" {
                assert_eq!(fs::read_to_string(&file).unwrap(), "c1");
            } else {
                fs::write(&file, user).unwrap();
            }
            bench.storages.release(user).await.unwrap();
            assert_eq!(mounts(), before);
            assert!(!bench.at("deep").exists(), "directories that were made for it are gone");
        }
    });
}

/// Rows H2 and A8 of the reliability tests (CVE-2026-24054).
#[test]
fn a_disk_that_is_none_is_refused() {
    on_bench(async |bench| {
        let blank = Loop::blank(&bench.dir, "blank", 8);
        let error = bench.refused(bench.storage("blk", &blank.node, "ext4", "a/b")).await.to_string();
        assert!(
            error.contains("ext4") && error.contains("os error 22") && error.contains("superblock"),
            "{error}"
        );
        let error = bench.refused(bench.storage("blk", &blank.node, "nofs", "a/b")).await.to_string();
        assert!(error.contains("no file system \"nofs\""), "{error}");
        let error = bench.refused(bench.storage("blk", &blank.node, "", "a/b")).await;
        assert!(matches!(error, StorageError::Invalid { .. }), "{error}");
        for (source, why) in [("/dev/null", "a character device"), ("/dev/shm", "a directory")] {
            let error = bench.refused(bench.storage("blk", source, "ext4", "a/b")).await.to_string();
            assert!(error.contains(why), "{error}");
        }
        for source in ["../etc/passwd", "02.9", "/dev/../etc/passwd", ""] {
            bench.refused(bench.storage("blk", source, "ext4", "a/b")).await;
        }
        bench.refused(bench.storage("nvdimm", "/dev/loop0", "ext4", "a/b")).await;
        bench.refused(bench.storage("scsi", "1", "ext4", "a/b")).await;
    });
}

#[test]
fn a_disk_that_never_comes_is_waited_for_and_its_absence_explained() {
    on_bench(async |bench| {
        for (driver, source, cause) in [
            ("blk", "1f/1f", "PCI"),
            ("blk", "/dev/vdzz", "there is no /dev/vdzz"),
            ("mmioblk", "/dev/vdzz", "there is no /dev/vdzz"),
            ("nvdimm", "/dev/pmem77", "there is no /dev/pmem77"),
            ("scsi", "250:250", "no SCSI host has a unit 250:250"),
        ] {
            let begun = Instant::now();
            let error = bench.refused(bench.storage(driver, source, "ext4", "a/b")).await.to_string();
            assert!(begun.elapsed() >= PATIENCE, "{driver}");
            assert!(error.contains("did not appear within 0.3 s") && error.contains(cause), "{error}");
        }
    });
}

/// The node comes, and then the kernel's word. (A loop device of its own would open before there is anything in it.)
#[test]
fn a_disk_is_found_when_it_comes_while_it_is_waited_for() {
    on_patient_bench(async |bench| {
        let disk = Loop::formatted(&bench.dir, "ext4", 16);
        let late = Late(PathBuf::from(format!("/dev/berth-late-{}", std::process::id())));
        let storage = bench.storage("blk", &late.0, "ext4", "volume");
        let number = fs::metadata(&disk.node).unwrap().rdev();
        let trigger = disk.node.replace("/dev", "/sys/block") + "/uevent";
        let mut acquiring = pin!(bench.storages.acquire("c1", vec![storage]));
        let waiting = poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context).is_pending()));
        assert!(waiting.await);
        mknod(&late.0, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, number).unwrap();
        fs::write(trigger, "change").unwrap();
        acquiring.await.unwrap();
        assert!(bench.at("volume/lost+found").exists());
        bench.storages.release("c1").await.unwrap();
    });
}

/// A node that does not exist yet, and is gone again afterwards.
struct Late(PathBuf);

impl Drop for Late {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_file_system_is_made_and_given_to_its_group() {
    on_bench(async |bench| {
        let disk = Loop::blank(&bench.dir, "blank", 16);
        let mut storage = bench.storage("blk", &disk.node, "ext4", "volume");
        storage.driver_options = vec!["create_filesystem".into()];
        storage.fs_group = Some(FsGroup { id: 2000, on_root_mismatch: false });
        bench.storages.acquire("c1", vec![storage.clone()]).await.unwrap();
        let root = fs::metadata(bench.at("volume")).unwrap();
        assert_eq!((root.gid(), root.mode() & 0o7777), (2000, 0o2775));
        bench.storages.release("c1").await.unwrap();

        storage.fstype = "xfs".into();
        let error = bench.refused(storage.clone()).await.to_string();
        assert!(error.contains("only ext4"), "{error}");
        storage.fstype = "ext4".into();
        storage.driver_options = vec!["encryption_key=ephemeral".into()];
        let error = bench.refused(storage.clone()).await.to_string();
        assert!(error.contains("no create_filesystem"), "{error}");
        // After the mount, a step that fails: the file system is read-only and its files are to be given away.
        storage.driver_options = Vec::new();
        storage.options = vec!["ro".into()];
        let error = bench.refused(storage).await.to_string();
        assert!(error.contains("group 2000") && error.contains("os error 30"), "{error}");
    });
}
