//! Layers without the device mapper, which this machine may not have; with it they are tested in a VM.

use std::{fs, path::Path};

use berth_agent::storage::{Storage, StorageError};

use crate::bench::{Bench, Loop, mounts, on_bench, run};

const MULTI: &str = "X-kata.multi-layer=true";

/// A loop device over an image of a directory that has `files`.
fn image(bench: &Bench, name: &str, files: &[(&str, &str)]) -> Loop {
    let tree = bench.dir.join(format!("{name}.tree"));
    for (path, content) in files {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let file = bench.dir.join(name);
    run("mkfs.erofs", &["-d0", &file.display().to_string(), &tree.display().to_string()]);
    Loop::over(file)
}

fn layer(bench: &Bench, disk: &Loop, fstype: &str, options: &[&str]) -> Storage {
    let mut layer = bench.storage("blk", &disk.node, fstype, "root");
    layer.options = options.iter().copied().chain([MULTI]).map(str::to_owned).collect();
    layer
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn an_image_is_mounted_read_only_whatever_the_request_says() {
    on_bench(async |bench| {
        let before = mounts();
        let disk = image(&bench, "image", &[("a/file", "content")]);
        for (driver, fstype) in [("erofs", ""), ("erofs", "erofs"), ("blk", "erofs"), ("mmioblk", "erofs")] {
            let mut storage = bench.storage(driver, &disk.node, fstype, "volume");
            storage.options = vec!["rw".into()];
            bench.storages.acquire("c1", vec![storage]).await.unwrap();
            assert_eq!(read(bench.at("volume/a/file")), "content");
            assert!(mounts().iter().any(|line| line.contains("/volume ro,")), "{driver} {fstype}");
            bench.storages.release("c1").await.unwrap();
            assert_eq!(mounts(), before);
        }
        let error = bench.refused(bench.storage("erofs", &disk.node, "ext4", "volume")).await;
        assert!(matches!(error, StorageError::Invalid { .. }), "{error}");
        let mut storage = bench.storage("blk", &disk.node, "ext4", "volume");
        (storage.options, storage.driver_options) = (vec!["ro".into()], vec!["create_filesystem".into()]);
        let error = bench.refused(storage).await.to_string();
        assert!(error.contains("nothing can be written"), "{error}");
    });
}

#[test]
fn layers_cover_each_other_in_their_order_and_go_together() {
    on_bench(async |mut bench| {
        let (top, base) = (
            image(&bench, "top", &[("who", "top")]),
            image(&bench, "base", &[("who", "base"), ("below", "base")]),
        );
        let upper = Loop::formatted(&bench.dir, "ext4", 16);
        let before = mounts();
        let all = || {
            vec![
                layer(
                    &bench,
                    &upper,
                    "ext4",
                    &["X-kata.overlay-upper", "X-kata.mkdir.path={{ mount 0 }}/upper:0700"],
                ),
                layer(&bench, &top, "erofs", &["X-kata.overlay-lower"]),
                layer(&bench, &base, "erofs", &["X-kata.overlay-lower"]),
            ]
        };
        bench.storages.acquire("c1", all()).await.unwrap();
        assert_eq!(mounts().len(), before.len() + 4);
        assert_eq!((read(bench.at("root/who")), read(bench.at("root/below"))), ("top".into(), "base".into()));
        fs::write(bench.at("root/who"), "written").unwrap();

        // Another user of the same; other layers are not the same.
        bench.storages.acquire("c2", all()).await.unwrap();
        let error = bench.storages.acquire("c3", vec![all().remove(1)]).await.unwrap_err();
        assert!(matches!(error, StorageError::Conflict { .. }), "{error}");
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts().len(), before.len() + 4);
        // The next worker finds all of it by the record.
        bench.take_over();
        bench.storages.recover(|user| user == "c2").await.unwrap();
        assert_eq!(read(bench.at("root/who")), "written");
        bench.storages.release("c2").await.unwrap();
        assert_eq!(mounts(), before);
        assert_eq!(fs::read_dir(bench.at("state/storages")).unwrap().count(), 0);
        assert!(!bench.at("root").exists());
    });
}

#[test]
fn nothing_is_written_without_an_upper_layer_and_memory_takes_it() {
    on_bench(async |bench| {
        let (top, base) =
            (image(&bench, "top", &[("who", "top")]), image(&bench, "base", &[("who", "base")]));
        let before = mounts();
        let lowers = vec![layer(&bench, &top, "erofs", &[]), layer(&bench, &base, "erofs", &[])];
        for (layers, expected) in [(lowers.clone(), 3), (lowers[1..].to_vec(), 1)] {
            bench.storages.acquire("c1", layers).await.unwrap();
            assert_eq!(mounts().len(), before.len() + expected);
            let refused = fs::write(bench.at("root/x"), "").unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(30), "{refused}");
            bench.storages.release("c1").await.unwrap();
            assert_eq!(mounts(), before);
        }
        let mut upper = bench.storage("ephemeral", "tmpfs", "tmpfs", "root");
        upper.options = vec!["size=1m".into(), MULTI.into()];
        bench.storages.acquire("c1", [lowers, vec![upper]].concat()).await.unwrap();
        fs::write(bench.at("root/who"), "written").unwrap();
        assert_eq!(read(bench.at("root/who")), "written");
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts(), before);
    });
}

#[test]
fn a_layer_that_fails_takes_those_before_it_along() {
    on_bench(async |bench| {
        let top = image(&bench, "top", &[("who", "top")]);
        let blank = Loop::blank(&bench.dir, "blank", 8);
        let partition = ["X-kata.gpt-partitioned=true", "X-kata.partition-number=1"];
        let mut absent = layer(&bench, &blank, "erofs", &[]);
        absent.source = "/dev/vdzz".into();
        let upper = layer(&bench, &blank, "ext4", &[]);
        let below =
            |mount| layer(&bench, &top, "erofs", &[&format!("X-kata.mkdir.path={{{{ mount {mount} }}}}/x")]);
        let state = fs::read_dir(bench.at("state/storages")).unwrap().count();
        for (last, problem) in [
            (vec![layer(&bench, &blank, "erofs", &[])], "superblock"),
            (vec![upper], "superblock"),
            (vec![absent], "there is no /dev/vdzz"),
            (vec![layer(&bench, &blank, "erofs", &partition)], "has no partition table"),
            (vec![below(3)], "which it has not"),
            (vec![below(1)], "cannot make x in the layer"),
            (vec![layer(&bench, &top, "erofs", &["X-kata.overlay-upper"])], "cannot"),
        ] {
            let before = mounts();
            let lower = image(&bench, &format!("lower{}", problem.len()), &[("a", "b")]);
            let layers = [vec![layer(&bench, &lower, "erofs", &[])], last].concat();
            let error = bench.storages.acquire("c1", layers).await.unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            bench.storages.release("c1").await.unwrap();
            assert_eq!(mounts(), before, "{error}");
            assert_eq!(fs::read_dir(bench.at("state/storages")).unwrap().count(), state);
            assert!(!bench.at("root").exists());
        }
    });
}
