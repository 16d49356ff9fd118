//! Layers: what is in them is what containers see, and each is there once.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::PathBuf,
};

use berth_agent::storage::Storage;
use nix::mount::{MsFlags, mount};
use serde_json::json;

use crate::{
    bench::{Bench, mounts, on_bench, run},
    layout::{Layout, TIME, Tar, names},
};

/// Where the agent keeps images, on a file system of its own: an overlay cannot be over one.
pub fn room(bench: &Bench, size: &str) -> PathBuf {
    let path = bench.at("kata-containers");
    fs::create_dir_all(&path).unwrap();
    let options = format!("size={size}");
    mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
    path.join("image")
}

pub fn pull(bench: &Bench, source: String, mount_point: &str) -> Storage {
    bench.storage("image_guest_pull", source, "overlay", mount_point)
}

fn first() -> Tar {
    Tar::new()
        .entry(b'5', "./", "", 0o751, b"")
        .dir("etc/")
        .owned(1000, 1001)
        .entry(b'0', "etc/a", "", 0o4755, b"one")
        .owned(0, 0)
        .hardlink("etc/b", "etc/a")
        .entry(b'5', "usr/lib", "", 0o700, b"")
        .symlink("lib", "usr/lib")
        .symlink("absolute", "/usr/lib")
        .device(b'3', "null", 1, 3)
        .device(b'6', "pipe", 0, 0)
        .pax(&[
            ("SCHILY.xattr.user.berth", "value"),
            ("SCHILY.xattr.trusted.overlay.opaque", "y"),
            ("mtime", "7.5"),
        ])
        .file("extended", "")
        .file("gone", "")
        .file("opaque/x", "")
        .file("opaque/deep/y", "")
        .file("swap/inner", "")
        .file("swapped", "")
}

fn second() -> Tar {
    Tar::new()
        .file(".wh.gone", "")
        .file("none/.wh.nothing", "")
        .file("opaque/z", "")
        .file("opaque/deep/own", "")
        .file("opaque/.wh..wh..opq", "")
        .file(".wh..wh.plnk", "")
        .file("lib/new", "through a link")
        .file("absolute/newer", "through an absolute link")
        .file("swap", "a file by now")
        .dir("swapped")
        .file("swapped/inner", "")
}

fn third() -> Tar {
    let long = "long/".repeat(40);
    Tar::new()
        .file("etc/a", "three")
        .file("etc/.wh.b", "")
        .file("opaque/.wh.deep", "")
        .file("opaque/deep/last", "")
        .pax(&[("path", &format!("{long}file"))])
        .file("short", "deep down")
}

#[test]
fn layers_of_every_kind_make_one_tree() {
    on_bench(async |bench| {
        room(&bench, "64m");
        let before = mounts();
        let mut layout = Layout::new(bench.at("layout"));
        let layers = [("", first().bytes()), ("+gzip", second().bytes()), ("+zstd", third().bytes())];
        layout.image("latest", &layers, json!({}));
        let storage = pull(&bench, layout.source(), "c1/rootfs");
        bench.storages.acquire("c1", vec![storage]).await.unwrap();

        let root = bench.at("c1/rootfs");
        let look = |path: &str| {
            fs::symlink_metadata(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert_eq!((look("").mode() & 0o7777, look("").mtime()), (0o751, TIME));
        assert_eq!(text("etc/a"), "three");
        assert_eq!(names(&root.join("etc")), ["a"]);
        assert_eq!(names(&root.join("opaque")), ["deep", "z"]);
        assert_eq!(names(&root.join("opaque/deep")), ["last"]);
        assert!(!root.join("gone").exists() && !root.join("none").exists());
        assert_eq!(fs::read_link(root.join("lib")).unwrap().to_str(), Some("usr/lib"));
        assert_eq!(text("usr/lib/new"), "through a link");
        assert_eq!(text("usr/lib/newer"), "through an absolute link");
        assert_eq!(
            look("usr/lib").mode() & 0o7777,
            0o700,
            "a directory that a layer does not name stays as it is"
        );
        assert_eq!(look("usr/lib").mtime(), TIME);
        assert_eq!(
            (text("swap").as_str(), names(&root.join("swapped"))),
            ("a file by now", vec!["inner".to_owned()])
        );
        assert!(look("null").file_type().is_char_device() && look("pipe").file_type().is_fifo());
        assert_eq!((look("null").rdev(), look("null").mode() & 0o7777), (0x103, 0o666));
        assert_eq!((look("extended").mtime(), look("extended").mtime_nsec()), (7, 500_000_000));
        assert_eq!(text(&format!("{}file", "long/".repeat(40))), "deep down");
        let attributes = format!("import os; print(os.listxattr({:?}))", root.join("extended"));
        assert!(!run("python3", &["-c", &attributes]).contains("trusted"));

        fs::write(root.join("etc/a"), "changed").unwrap();
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts(), before);
        for kind in ["layers", "fresh"] {
            assert!(names(&bench.at("kata-containers/image").join(kind)).is_empty(), "{kind}");
        }
        assert!(!bench.at("c1").exists() && !bench.at("kata-containers/image/changes").exists());
    });
}

#[test]
fn owners_modes_and_links_of_a_single_layer_are_exact() {
    on_bench(async |bench| {
        room(&bench, "64m");
        let layout = Layout::of(bench.at("layout"), vec![first()]);
        bench.storages.acquire("c1", vec![pull(&bench, layout.source(), "root")]).await.unwrap();
        let look = |path: &str| fs::symlink_metadata(bench.at("root").join(path)).unwrap();
        let (a, b) = (look("etc/a"), look("etc/b"));
        assert_eq!((a.uid(), a.gid(), a.mode() & 0o7777, a.mtime()), (1000, 1001, 0o4755, TIME));
        assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
        assert_eq!(look("lib").mtime(), TIME);
        bench.storages.release_all().await.unwrap();
    });
}

#[test]
fn what_images_have_in_common_is_there_once() {
    on_bench(async |mut bench| {
        let images = room(&bench, "64m");
        let base = Tar::new().file("base", "base").bytes();
        let mut layout = Layout::new(bench.at("layout"));
        for name in ["one", "two"] {
            let own = Tar::new().file(name, name).bytes();
            // Packed otherwise it is the same layer.
            let packed = if name == "one" { "+gzip" } else { "" };
            layout.image(&format!("example.org/{name}:1"), &[(packed, base.clone()), ("", own)], json!({}));
        }
        let of = |name: &str, at: &str| {
            let mut storage = pull(&bench, format!("example.org/{name}:1"), at);
            storage.driver_options = vec![
                format!("oci_layout={}", layout.dir.display()),
                r#"image_guest_pull={"metadata":{"io.kubernetes.cri.container-type":"container"}}"#.into(),
            ];
            storage
        };
        let before = mounts();
        let all = [of("one", "c1"), of("one", "c2"), of("two", "c3"), of("two", "c4")];
        let [a, b, c, d] = all.map(|storage| (storage.mount_point.clone(), storage));
        let user = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let (storages, users) = (&bench.storages, [&a, &b, &c, &d].map(|(path, _)| user(path)));
        let outcomes = tokio::join!(
            storages.acquire(&users[0], vec![a.1]),
            storages.acquire(&users[1], vec![b.1]),
            storages.acquire(&users[2], vec![c.1]),
            storages.acquire(&users[3], vec![d.1]),
        );
        for outcome in [outcomes.0, outcomes.1, outcomes.2, outcomes.3] {
            outcome.unwrap();
        }
        assert_eq!(names(&images.join("layers")).len(), 3);
        assert_eq!(names(&bench.at("c2")), ["base", "one"]);
        assert_eq!(names(&bench.at("c3")), ["base", "two"]);
        fs::write(bench.at("c1/base"), "changed").unwrap();
        assert_eq!(fs::read_to_string(bench.at("c2/base")).unwrap(), "base");

        // The next worker knows whose layers are whose, and throws away what is nobody's.
        fs::create_dir_all(images.join("layers/stray/deep")).unwrap();
        fs::create_dir_all(images.join("fresh/stray/merged")).unwrap();
        let fresh = images.join("fresh/stray/merged");
        mount(Some("tmpfs"), &fresh, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        bench.take_over();
        bench.storages.recover(|user| user != "c4").await.unwrap();
        assert_eq!(names(&images.join("layers")).len(), 3);
        assert!(names(&images.join("fresh")).is_empty());
        assert!(!bench.at("c4").exists());

        bench.storages.release("c3").await.unwrap();
        assert_eq!(names(&images.join("layers")).len(), 2);
        bench.storages.release("c2").await.unwrap();
        assert_eq!(names(&bench.at("c1")), ["base", "one"]);
        bench.storages.release("c1").await.unwrap();
        assert!(names(&images.join("layers")).is_empty());
        assert_eq!(mounts(), before);
    });
}

#[test]
fn an_image_with_more_layers_than_a_page_of_paths() {
    on_bench(async |bench| {
        room(&bench, "64m");
        let layers = (0..120).map(|n| Tar::new().file(&format!("file{n}"), n.to_string())).collect();
        let layout = Layout::of(bench.at("layout"), layers);
        bench.storages.acquire("c1", vec![pull(&bench, layout.source(), "root")]).await.unwrap();
        assert_eq!(names(&bench.at("root")).len(), 120);
        bench.storages.release_all().await.unwrap();
    });
}

/// The layout is on a disk of its own, which another storage of the same request mounts.
#[test]
fn a_layout_on_a_disk() {
    on_bench(async |bench| {
        room(&bench, "64m");
        let layout = Layout::of(bench.at("layout"), vec![Tar::new().file("a", "from the disk")]);
        let disk = crate::bench::Loop::blank(&bench.dir, "disk.img", 8);
        run("mkfs.ext4", &["-q", "-F", "-d", &layout.dir.display().to_string(), &disk.node]);
        fs::remove_dir_all(&layout.dir).unwrap();
        let before = mounts();
        let mut mounted = bench.storage("blk", &disk.node, "ext4", "mounted");
        mounted.options = vec!["ro".into()];
        let image = pull(&bench, format!("oci:{}:latest", bench.at("mounted").display()), "root");
        bench.storages.acquire("c1", vec![mounted, image]).await.unwrap();
        assert_eq!(fs::read_to_string(bench.at("root/a")).unwrap(), "from the disk");
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts(), before);
    });
}
