//! Layers that want out. Nothing outside the image may change, whether the layer is refused or not.

use std::{fs, path::Path};

use crate::{
    bench::{mounts, on_bench},
    layers::{pull, room},
    layout::{Layout, Tar},
};

/// Each with what its refusal says, or nothing where it only must not get out.
fn layers(out: &Path) -> Vec<(&'static str, Vec<Tar>, Option<&'static str>)> {
    let canary = out.join("canary").display().to_string();
    let inner = canary.trim_start_matches('/').to_owned();
    let up = "../".repeat(20);
    let tar = Tar::new;
    let refused = |text| Some(text);
    vec![
        ("dots", vec![tar().file("../canary", "x")], refused("leads out")),
        ("dots within", vec![tar().file("a/../../canary", "x")], refused("leads out")),
        ("only dots", vec![tar().dir("..")], refused("leads out")),
        ("an absolute path", vec![tar().file(&canary, "x")], None),
        ("a link up", vec![tar().symlink("l", &up).file(&format!("l/{inner}"), "x")], None),
        ("a link up, below", vec![tar().symlink("l", &up), tar().file(&format!("l/{inner}"), "x")], None),
        ("an absolute link", vec![tar().symlink("l", "/").file(&format!("l/{inner}"), "x")], None),
        (
            "a link to a directory",
            vec![tar().symlink("l", &out.display().to_string()).file("l/canary", "x")],
            refused("os error 17"),
        ),
        ("a link to the file", vec![tar().symlink("l", &canary).file("l", "x")], None),
        ("a link to the file, below", vec![tar().symlink("l", &canary), tar().file("l", "x")], None),
        (
            "a magic link",
            vec![tar().symlink("l", "/proc/self/root").file(&format!("l/{inner}"), "x")],
            refused("os error 17"),
        ),
        ("a hard link out", vec![tar().hardlink("h", &format!("{up}{inner}"))], refused("leads out")),
        ("an absolute hard link", vec![tar().hardlink("h", &canary).file("h", "x")], refused("os error 2")),
        (
            "a hard link through a link",
            vec![tar().symlink("l", "/").hardlink("h", &format!("l{canary}")).file("h", "x")],
            refused("os error 2"),
        ),
        ("a hard link to a directory", vec![tar().dir("d").hardlink("h", "d/")], refused("os error 1")),
        ("a hard link to the root", vec![tar().hardlink("h", "./")], refused("to a directory")),
        ("a whiteout of the parent", vec![tar().file("d/.wh...", "")], refused("whiteout of no file")),
        (
            "a whiteout of itself",
            vec![tar().dir("d"), tar().file("d/.wh..", "")],
            refused("whiteout of no file"),
        ),
        ("a whiteout of nothing", vec![tar().file(".wh.", "")], refused("whiteout of no file")),
        (
            "a whiteout through a link",
            vec![tar().symlink("l", &out.display().to_string()), tar().file("l/.wh.canary", "")],
            None,
        ),
        (
            "a whiteout up",
            vec![tar().symlink("l", &up), tar().file(&format!("l/{}/.wh.canary", out.display()), "")],
            None,
        ),
        (
            "all white",
            vec![tar().symlink("l", &up), tar().file("l/.wh..wh..opq", "").file("l/tmp/.wh..wh..opq", "")],
            None,
        ),
        (
            "a whiteout that leads out",
            vec![tar().dir("d"), tar().file("../.wh.canary", "")],
            refused("leads out"),
        ),
        (
            "a directory over a link",
            vec![tar().symlink("l", &out.display().to_string()).dir("l").file("l/canary", "x")],
            None,
        ),
        ("the root as a link", vec![tar().symlink("./", "/")], refused("root directory")),
        ("the kernel's whiteout", vec![tar().device(b'3', "w", 0, 0)], refused("kernel's own whiteout")),
        (
            "a loop of links",
            vec![tar().symlink("a", "b").symlink("b", "a").file("a/x", "")],
            refused("os error 40"),
        ),
        ("too deep", vec![tar().pax(&[("path", &"d/".repeat(300))]).dir("x")], refused("deeper than 256")),
        ("too deep by links", vec![deep_by_links()], refused("deeper than 256")),
        (
            "a name that is too long",
            vec![tar().pax(&[("path", &"n".repeat(300))]).file("x", "")],
            refused("too long a name"),
        ),
        (
            "a path that is too long",
            vec![tar().pax(&[("path", &"n/".repeat(3000))]).file("x", "")],
            refused("longer than 4096"),
        ),
        ("a NUL", vec![tar().pax(&[("path", "a\0b")]).file("x", "")], refused("damaged")),
        ("sparse", vec![tar().pax(&[("GNU.sparse.realsize", "1")]).file("x", "")], refused("sparse")),
        ("an unknown type", vec![tar().entry(b'V', "v", "", 0, b"")], refused("unknown type 'V'")),
        ("a size that is none", vec![tar().pax(&[("size", "-1")]).file("x", "")], refused("damaged")),
        (
            "a size beyond the end",
            vec![tar().pax(&[("size", "4096000000000")]).file("x", "")],
            refused("ends within a file"),
        ),
    ]
}

/// No path is long, but each goes on where the last one ended.
fn deep_by_links() -> Tar {
    let mut tar = Tar::new();
    let mut from = String::new();
    for n in 0..10 {
        let deep = format!("{from}{}", "d/".repeat(40));
        tar = tar.dir(&deep).symlink(&format!("l{n}"), deep.trim_end_matches('/'));
        from = format!("l{n}/");
    }
    tar
}

#[test]
fn no_layer_gets_out() {
    on_bench(async |bench| {
        let images = room(&bench, "16m");
        let out = bench.at("outside");
        fs::create_dir_all(&out).unwrap();
        fs::write(out.join("canary"), "unharmed").unwrap();
        let good = Layout::of(bench.at("good"), vec![Tar::new().file("a", "")]);
        bench.storages.acquire("c0", vec![pull(&bench, good.source(), "root")]).await.unwrap();
        bench.storages.release("c0").await.unwrap();
        let before = mounts();
        for (name, tars, expected) in layers(&out) {
            let _ = fs::remove_dir_all(bench.at("layout"));
            let layout = Layout::of(bench.at("layout"), tars);
            let storage = pull(&bench, layout.source(), "root");
            match expected {
                Some(expected) => {
                    println!("{name}");
                    let error = bench.refused(storage).await.to_string();
                    assert!(error.contains(expected), "{name}: {expected:?} is not in {error:?}");
                }
                None => {
                    let outcome = bench.storages.acquire("c1", vec![storage]).await;
                    outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
                    bench.storages.release("c1").await.unwrap();
                }
            }
            assert_eq!(fs::read_to_string(out.join("canary")).unwrap(), "unharmed", "{name}");
            assert_eq!(crate::layout::names(&out), ["canary"], "{name}");
            assert_eq!(mounts(), before, "{name}");
            for kind in ["layers", "fresh"] {
                assert!(crate::layout::names(&images.join(kind)).is_empty(), "{name}: {kind}");
            }
        }
    });
}
