//! Volumes whose changes are followed.

use std::fs;

use crate::{
    bench::{mounts, on_bench},
    support::eventually,
};

#[test]
fn changes_of_the_source_are_followed() {
    on_bench(async |bench| {
        let before = mounts();
        fs::create_dir_all(bench.at("source")).unwrap();
        for n in 0..40 {
            fs::write(bench.at("source").join(format!("key{n}")), vec![b'x'; 64 << 10]).unwrap();
        }
        let storage = bench.storage("watchable-bind", bench.at("source"), "bind", "copy");
        bench.storages.acquire("c1", vec![storage]).await.unwrap();
        assert_eq!(fs::read_dir(bench.at("copy")).unwrap().count(), 40);
        fs::create_dir(bench.at("source/later")).unwrap();
        eventually("the copy to follow", || bench.at("copy/later").exists()).await;
        fs::write(bench.at("source/later/file"), "deep").unwrap();
        eventually("the copy to follow", || {
            fs::read(bench.at("copy/later/file")).is_ok_and(|text| text == b"deep")
        })
        .await;
        fs::write(bench.at("source/key0"), "new").unwrap();
        eventually("the copy to follow", || fs::read(bench.at("copy/key0")).is_ok_and(|text| text == b"new"))
            .await;
        fs::remove_file(bench.at("source/key1")).unwrap();
        eventually("the copy to follow", || !bench.at("copy/key1").exists()).await;

        let file = bench.storage("watchable-bind", bench.at("source/key0"), "bind", "one");
        bench.storages.acquire("c1", vec![file]).await.unwrap();
        fs::write(bench.at("source/fresh"), "replaced").unwrap();
        fs::rename(bench.at("source/fresh"), bench.at("source/key0")).unwrap();
        eventually("the copy to follow", || fs::read(bench.at("one")).is_ok_and(|text| text == b"replaced"))
            .await;
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts(), before);
        assert!(!bench.at("copy").exists() && !bench.at("one").exists());
    });
}
