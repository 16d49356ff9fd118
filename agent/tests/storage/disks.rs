//! Drivers of disks.

use std::{fs, os::unix::fs::FileExt, process::Command, time::Instant};

use berth_agent::storage::{FsGroup, StorageError};

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

/// A partition: its node comes when the disk below has been read. A loop device itself opens before there is anything
/// in it.
#[test]
fn a_disk_is_found_when_it_comes_while_it_is_waited_for() {
    on_patient_bench(async |bench| {
        const START: u32 = 2048;
        let file = bench.at("partitioned.img");
        fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        let path = file.display().to_string();
        let offset = format!("offset={}", START * 512);
        crate::bench::run("mkfs.ext4", &["-q", "-F", "-E", &offset, &path, "14m"]);
        let table = fs::OpenOptions::new().write(true).open(&file).unwrap();
        let partition =
            [&[0, 0, 0, 0, 0x83, 0, 0, 0][..], &START.to_le_bytes(), &(14u32 << 11).to_le_bytes()];
        table.write_all_at(&partition.concat(), 446).unwrap();
        table.write_all_at(&[0x55, 0xaa], 510).unwrap();

        let late = Late::number(2000 + std::process::id() % 100_000);
        let storage = bench.storage("blk", format!("{}p1", late.node), "ext4", "volume");
        let node = late.node.clone();
        let plug = std::thread::spawn(move || {
            std::thread::sleep(PATIENCE / 6);
            crate::bench::run("losetup", &["--partscan", &node, &path]);
        });
        bench.storages.acquire("c1", vec![storage]).await.unwrap();
        plug.join().unwrap();
        assert!(bench.at("volume/lost+found").exists());
        bench.storages.release("c1").await.unwrap();
    });
}

/// A loop device that does not exist yet, and is gone again afterwards.
struct Late {
    node: String,
    number: u32,
}

impl Late {
    fn number(number: u32) -> Self {
        Self { node: format!("/dev/loop{number}"), number }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        const REMOVE: &str = "import fcntl, os, sys\n\
            fcntl.ioctl(os.open('/dev/loop-control', os.O_RDWR), 0x4C81, int(sys.argv[1]))";
        let _ = Command::new("losetup").args(["--detach", &self.node]).status();
        let _ = Command::new("python3").args(["-c", REMOVE, &self.number.to_string()]).status();
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
        use std::os::unix::fs::MetadataExt;
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
