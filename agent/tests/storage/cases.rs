//! Every driver beside every way in which a storage can fail.
//!
//! | driver         | wrong type                    | missing          | place taken | each step | real |
//! |----------------|-------------------------------|------------------|-------------|-----------|------|
//! | blk            | character device, blank disk  | deadline, cause  | yes         | yes       | loop; VM |
//! | mmioblk        | directory, blank disk         | deadline, cause  | yes         | yes       | loop |
//! | scsi           | no `ID:LUN`                   | deadline, cause  | in the VM   | as blk    | VM |
//! | nvdimm         | no `pmemN`                    | deadline, cause  | in the VM   | as blk    | VM |
//! | overlayfs      | a file as a layer             | no such layer    | yes         | yes       | here |
//! | bind           | a link, a relative path       | no such source   | yes         | yes       | here |
//! | watchable-bind | a link, a relative path       | no such source   | yes         | yes       | here |
//! | ephemeral      | no such file system           | no such pool     | yes         | yes       | here |
//! | local          | a mode that is none           | (makes it)       | yes         | yes       | here |
//! | virtio-fs      | no tag                        | no such tag      | in the VM   | as bind   | VM |
//! | 9p             | no tag                        | no such tag      | in the VM   | as bind   | VM |
//!
//! "Each step" is: a journal without room for the first record, for the second and so on, whatever the step is that
//! would have come next. What fails at a step itself is in `disks`, `plain` and `life`. Drivers that need a disk share
//! one way of placing it, and those that only mount share another. Every refusal compares the mount table.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink, path::Path, time::Instant};

use berth_agent::storage::{Storage, StorageError, driver_names};

use crate::bench::{Bench, Loop, PATIENCE, mounts, on_bench, run};

/// Drivers that this machine has something real for.
const REAL: [&str; 7] = ["bind", "blk", "ephemeral", "local", "mmioblk", "overlayfs", "watchable-bind"];

/// A storage of this driver that can be had.
fn good(bench: &Bench, driver: &str, disk: &Loop, place: &str) -> Storage {
    let source = bench.at("source").display().to_string();
    match driver {
        "blk" | "mmioblk" => bench.storage(driver, &disk.node, "ext4", place),
        "ephemeral" => bench.storage(driver, "tmpfs", "tmpfs", place),
        "local" => bench.storage(driver, "local", "local", place),
        "overlayfs" => {
            let options = vec![format!("lowerdir={source}:{}", bench.at("lower").display())];
            Storage { options, ..bench.storage(driver, "overlay", "overlay", place) }
        }
        _ => bench.storage(driver, &source, "bind", place),
    }
}

fn furnish(bench: &Bench) -> Loop {
    for name in ["source", "lower"] {
        fs::create_dir(bench.at(name)).unwrap();
        fs::write(bench.at(name).join(name), name).unwrap();
    }
    Loop::formatted(&bench.dir, "ext4", 16)
}

#[test]
fn a_source_of_the_wrong_kind_is_refused() {
    on_bench(async |bench| {
        let _disk = furnish(&bench);
        let blank = Loop::blank(&bench.dir, "blank", 8);
        symlink("source", bench.at("link")).unwrap();
        let file = bench.at("source/source").display().to_string();
        let link = bench.at("link").display().to_string();
        let cases: Vec<(&str, &str, &str, &[&str], &str)> = vec![
            ("9p", "", "9p", &[], "has no"),
            ("bind", "relative", "bind", &[], "relative"),
            ("bind", &link, "bind", &[], "os error 40"),
            ("blk", "/dev/null", "ext4", &[], "a character device"),
            ("blk", &blank.node, "ext4", &[], "superblock"),
            ("blk", &file, "ext4", &[], "it has to be /dev/NAME"),
            ("blk", "/dev/a/../../etc/passwd", "ext4", &[], "it has to be /dev/NAME"),
            ("ephemeral", "none", "nofs", &[], "no file system \"nofs\""),
            ("local", "local", "local", &["mode=rwx"], "mode"),
            ("mmioblk", "/dev/shm", "ext4", &[], "a directory"),
            ("mmioblk", &blank.node, "ext4", &[], "superblock"),
            ("nvdimm", "/dev/loop0", "ext4", &[], "no /dev/pmemN"),
            ("overlayfs", "overlay", "overlay", &["lowerdir=FILE:FILE"], "mount overlay"),
            ("scsi", "one", "ext4", &[], "ID:LUN"),
            ("virtio-fs", "", "virtiofs", &[], "no virtio-fs tag"),
            ("watchable-bind", "relative", "bind", &[], "relative"),
            ("watchable-bind", &link, "bind", &[], "os error 40"),
        ];
        let named: BTreeSet<&str> = cases.iter().map(|(driver, ..)| *driver).collect();
        assert_eq!(named.into_iter().collect::<Vec<_>>(), known(), "a driver has no case");
        for (driver, source, fstype, options, why) in cases {
            let mut storage = bench.storage(driver, source, fstype, "a/b");
            storage.options = options.iter().map(|option| option.replace("FILE", &file)).collect();
            let error = bench.refused(storage).await.to_string();
            assert!(error.contains(why), "{driver} {source:?}: {error}");
        }
    });
}

/// The drivers of this table. Those of images and layers have tests of their own.
fn known() -> Vec<&'static str> {
    driver_names().filter(|name| !name.starts_with("erofs") && !name.starts_with("image")).collect()
}

#[test]
fn a_source_that_is_missing_is_told_and_waited_for_where_it_can_come() {
    on_bench(async |bench| {
        let nowhere = bench.at("nowhere").display().to_string();
        let layers = format!("lowerdir={nowhere}:{nowhere}");
        let layers = [layers.as_str()];
        let cases: Vec<(&str, &str, &str, &[&str], &str)> = vec![
            ("9p", "absent", "9p", &[], "absent"),
            ("bind", &nowhere, "bind", &[], "os error 2"),
            ("blk", "1e/1e", "ext4", &[], "PCI"),
            ("blk", "/dev/vdzy", "ext4", &[], "there is no /dev/vdzy"),
            ("ephemeral", "none", "hugetlbfs", &["pagesize=3M", "size=6M"], "hugepages-3072kB"),
            ("mmioblk", "/dev/vdzy", "ext4", &[], "there is no /dev/vdzy"),
            ("nvdimm", "/dev/pmem78", "ext4", &[], "there is no /dev/pmem78"),
            ("overlayfs", "overlay", "overlay", &layers, "os error 2"),
            ("scsi", "251:1", "ext4", &[], "no SCSI host has a unit 251:1"),
            ("virtio-fs", "absent", "virtiofs", &[], "absent"),
            ("watchable-bind", &nowhere, "bind", &[], "os error 2"),
        ];
        let named: BTreeSet<&str> = cases.iter().map(|(driver, ..)| *driver).chain(["local"]).collect();
        assert_eq!(named.into_iter().collect::<Vec<_>>(), known(), "a driver has no case");
        for (driver, source, fstype, options, why) in cases {
            let mut storage = bench.storage(driver, source, fstype, "a/b");
            storage.options = options.iter().map(|option| (*option).to_owned()).collect();
            let begun = Instant::now();
            let error = bench.refused(storage).await.to_string();
            assert!(error.contains(why), "{driver} {source:?}: {error}");
            let waits = matches!(driver, "blk" | "mmioblk" | "nvdimm" | "scsi");
            assert_eq!(error.contains("did not appear within 0.3 s"), waits, "{driver}: {error}");
            assert!(!waits || begun.elapsed() >= PATIENCE, "{driver}");
        }
    });
}

#[test]
fn a_place_that_is_taken_is_refused_to_every_other_driver() {
    on_bench(async |bench| {
        let disk = furnish(&bench);
        let before = mounts();
        for first in REAL {
            bench.storages.acquire("first", vec![good(&bench, first, &disk, "place")]).await.unwrap();
            for second in REAL.into_iter().filter(|second| *second != first) {
                let error = bench.refused(good(&bench, second, &disk, "place")).await;
                assert!(matches!(error, StorageError::Conflict { .. }), "{second} on {first}: {error}");
                assert!(error.to_string().contains(&format!("taken by {first}")), "{error}");
            }
            // The same once more is a second user, who keeps it when the first has gone.
            bench.storages.acquire("second", vec![good(&bench, first, &disk, "place")]).await.unwrap();
            bench.storages.release("first").await.unwrap();
            assert!(bench.at("place").exists(), "{first}");
            bench.storages.release_all().await.unwrap();
            assert_eq!(mounts(), before, "{first}");
            assert!(!bench.at("place").exists(), "{first}");
        }
    });
}

/// The journal's file system holds one page more with each round, and the paths are so long that each step takes one.
#[test]
fn a_failure_at_any_step_leaves_no_trace() {
    on_bench(async |mut bench| {
        let disk = furnish(&bench);
        let long = format!("{}/{}", "d".repeat(220), "e".repeat(220));
        let below = (0..(3600 - bench.dir.as_os_str().len()) / 442).map(|_| long.as_str());
        let deep = below.collect::<Vec<_>>().join("/");
        fs::create_dir_all(bench.at(&deep)).unwrap();
        let place = format!("{deep}/one/two/three");
        fs::create_dir_all(bench.at("state")).unwrap();
        for driver in REAL {
            for (failures, pages) in (2..).enumerate() {
                let state = bench.at("state").display().to_string();
                run("mount", &["-t", "tmpfs", "-o", &format!("size={}", pages * 4096), "journal", &state]);
                bench.take_over();
                let storage = good(&bench, driver, &disk, &place);
                let before = mounts();
                if bench.storages.acquire("c1", vec![storage.clone()]).await.is_ok() {
                    assert!(failures >= steps(&bench.at("state/storages")), "{driver}: {failures}");
                    bench.storages.release_all().await.unwrap();
                    assert_eq!(mounts(), before, "{driver}");
                    assert!(!bench.at(&place).parent().unwrap().exists(), "{driver}");
                    run("umount", &[&state]);
                    break;
                }
                let error = bench.refused(storage).await.to_string();
                assert!(error.contains("write the journal") && error.contains("os error 28"), "{error}");
                assert!(fs::read_dir(bench.at("state/storages")).unwrap().next().is_none(), "{driver}");
                run("umount", &[&state]);
            }
        }
    });
}

/// How many there are in the one record.
fn steps(records: &Path) -> usize {
    let path = fs::read_dir(records).unwrap().next().unwrap().unwrap().path();
    let record: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    record["undo"].as_array().unwrap().len()
}
