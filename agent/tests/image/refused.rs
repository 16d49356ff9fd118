//! Images that are damaged, forged or not for this guest, and a guest without room for them.

use std::{fs, os::unix::fs::symlink, time::Duration};

use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::{Value, json};

use crate::{
    bench::on_bench,
    layers::{pull, room},
    layout::{Layout, Tar, digest, names},
};

type Change = fn(&mut Layout, &[u8]);

fn document(layout: &Layout, digest: &Value) -> Value {
    serde_json::from_slice(&fs::read(layout.path_of(digest.as_str().unwrap())).unwrap()).unwrap()
}

fn manifest(layout: &Layout) -> Value {
    document(layout, &layout.manifests[0]["digest"])
}

fn change_manifest(layout: &mut Layout, change: impl FnOnce(&mut Value)) {
    let mut changed = manifest(layout);
    change(&mut changed);
    layout.manifests.clear();
    layout.manifest("latest", changed);
}

const CASES: &[(Change, &str)] = &[
    (
        |layout, blob| {
            let mut forged = blob.to_vec();
            forged[0] ^= 1;
            fs::write(layout.blob(blob), forged).unwrap()
        },
        "damaged",
    ),
    (
        |layout, blob| {
            let mut forged = blob.to_vec();
            let end = forged.len() - 1;
            forged[end] = 1;
            fs::write(layout.blob(blob), forged).unwrap()
        },
        "damaged or forged",
    ),
    (|layout, blob| fs::write(layout.blob(blob), &blob[..blob.len() - 512]).unwrap(), "its descriptor says"),
    (|layout, blob| fs::remove_file(layout.blob(blob)).unwrap(), "os error 2"),
    (
        |layout, blob| {
            fs::remove_file(layout.blob(blob)).unwrap();
            mkfifo(&layout.blob(blob), Mode::from_bits_retain(0o600)).unwrap()
        },
        "no regular file",
    ),
    (
        |layout, blob| {
            let path = layout.blob(blob);
            fs::rename(&path, layout.dir.join("x")).unwrap();
            symlink("../../x", path).unwrap()
        },
        "os error 40",
    ),
    (
        |layout, _| {
            change_manifest(layout, |manifest| {
                manifest["layers"][0]["mediaType"] = json!("application/x-rar")
            })
        },
        "application/x-rar",
    ),
    (|layout, _| change_manifest(layout, |manifest| manifest["layers"] = json!([])), "has 0 layers"),
    (
        |layout, _| change_manifest(layout, |manifest| manifest["layers"][0]["digest"] = json!("md5:00")),
        "md5:00",
    ),
    (
        |layout, _| {
            change_manifest(layout, |manifest| {
                manifest["layers"][0]["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+gzip")
            })
        },
        "cannot be unpacked",
    ),
    (
        |layout, _| {
            change_manifest(layout, |manifest| {
                manifest["layers"][0]["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+zstd")
            })
        },
        "cannot be unpacked",
    ),
    (
        |layout, _| {
            layout.manifests[0]["platform"] = json!({ "os": "linux", "architecture": "pdp11" });
            layout.write_index()
        },
        "not for linux/",
    ),
    (
        |layout, _| {
            let mut other = layout.manifests[0].clone();
            other["digest"] = json!(digest(b"other"));
            layout.manifests.push(other);
            layout.write_index()
        },
        "several images",
    ),
    (
        |layout, _| {
            layout.manifests.clear();
            layout.write_index()
        },
        "no image",
    ),
    (|layout, _| fs::write(layout.dir.join("index.json"), "{").unwrap(), "index.json cannot be read"),
    (|layout, _| fs::write(layout.dir.join("index.json"), vec![b' '; 5 << 20]).unwrap(), "5242880 bytes"),
    (|layout, _| fs::remove_dir_all(&layout.dir).unwrap(), "os error 2"),
];

#[test]
fn what_is_not_what_its_name_says_leaves_nothing() {
    on_bench(async |bench| {
        room(&bench, "16m");
        let good = Tar::new().file("a", "a").bytes();
        let mut layout = Layout::new(bench.at("layout"));
        layout.image("latest", &[("", good.clone())], json!({}));
        bench.storages.acquire("c0", vec![pull(&bench, layout.source(), "root")]).await.unwrap();
        bench.storages.release("c0").await.unwrap();
        for (change, expected) in CASES {
            let _ = fs::remove_dir_all(bench.at("layout"));
            let mut layout = Layout::new(bench.at("layout"));
            layout.image("latest", &[("", good.clone())], json!({}));
            change(&mut layout, &good);
            let error = bench.refused(pull(&bench, layout.source(), "root")).await.to_string();
            assert!(error.contains(expected), "{expected:?} is not in {error:?}");
        }

        // The manifest's digest is right, and the configuration tells of another archive.
        let _ = fs::remove_dir_all(bench.at("layout"));
        let mut layout = Layout::new(bench.at("layout"));
        layout.image("latest", &[("+gzip", good.clone())], json!({}));
        let mut changed = manifest(&layout);
        let mut config = document(&layout, &changed["config"]["digest"]);
        config["rootfs"]["diff_ids"] = json!([digest(b"another")]);
        changed["config"] =
            layout.add("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        layout.manifests.clear();
        layout.manifest("latest", changed);
        let error = bench.refused(pull(&bench, layout.source(), "root")).await.to_string();
        assert!(error.contains("damaged or forged"), "{error}");
    });
}

#[test]
fn a_reference_finds_the_image_for_this_platform_only() {
    on_bench(async |bench| {
        room(&bench, "16m");
        let mut layout = Layout::new(bench.at("layout"));
        let mut list = Vec::new();
        let this = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        for architecture in ["unknown", this, "s390x"] {
            layout.image("x", &[("", Tar::new().file(architecture, "").bytes())], json!({}));
            let mut descriptor = layout.manifests.pop().unwrap();
            descriptor["platform"] = json!({ "os": "linux", "architecture": architecture });
            list.push(descriptor);
        }
        let index = json!({ "schemaVersion": 2, "manifests": list }).to_string();
        let mut descriptor = layout.add("application/vnd.oci.image.index.v1+json", index.as_bytes());
        descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": "1.0" });
        let digest = descriptor["digest"].as_str().unwrap().to_owned();
        layout.manifests = vec![descriptor];
        layout.write_index();
        for reference in ["1.0", "example.org:5000/a/b:1.0", &format!("a@{digest}")] {
            let source = format!("{}:{reference}", layout.source());
            bench.storages.acquire("c1", vec![pull(&bench, source, "root")]).await.unwrap();
            assert_eq!(names(&bench.at("root")), [this], "{reference}");
            bench.storages.release("c1").await.unwrap();
        }
        for reference in ["2.0", "example.org:5000/a/b", "a@sha256:00"] {
            let source = format!("{}:{reference}", layout.source());
            let error = bench.refused(pull(&bench, source, "root")).await.to_string();
            assert!(error.contains("no image called"), "{error}");
        }
    });
}

#[test]
fn a_full_disk_is_told_and_the_rest_of_the_image_goes() {
    on_bench(async |bench| {
        let images = room(&bench, "2m");
        let small = Tar::new().file("small", "");
        let layout = Layout::of(bench.at("small"), vec![small.clone()]);
        bench.storages.acquire("c0", vec![pull(&bench, layout.source(), "root")]).await.unwrap();
        bench.storages.release("c0").await.unwrap();

        let mut large = Layout::new(bench.at("large"));
        let bomb = Tar::new().file("zeros", vec![0; 64 << 20]).bytes();
        large.image("latest", &[("", small.bytes()), ("+gzip", bomb)], json!({}));
        let error = bench.refused(pull(&bench, large.source(), "root")).await.to_string();
        assert!(error.contains("no space is left for the image in"), "{error}");
        assert!(names(&images.join("layers")).is_empty() && names(&images.join("fresh")).is_empty());
        bench.storages.acquire("c1", vec![pull(&bench, layout.source(), "root")]).await.unwrap();
        bench.storages.release_all().await.unwrap();

        bench.storages.set_image_patience(Duration::ZERO);
        let error = bench.refused(pull(&bench, layout.source(), "root")).await.to_string();
        assert!(error.contains("image_pull_timeout"), "{error}");
    });
}
