//! Drivers that need no disk.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

use berth_agent::storage::StorageError;

use crate::bench::{mounts, on_bench};

#[test]
fn memory_is_mounted_with_the_options_it_was_asked_with() {
    on_bench(async |bench| {
        let mut storage = bench.storage("ephemeral", "tmpfs", "tmpfs", "memory");
        storage.options = ["size=1m", "noexec", "mode=0770", "fsgid=1234"].map(String::from).to_vec();
        bench.storages.acquire("c1", vec![storage.clone()]).await.unwrap();
        let root = fs::metadata(bench.at("memory")).unwrap();
        assert_eq!((root.gid(), root.mode() & 0o7777), (1234, 0o2770));
        let line =
            mounts().into_iter().find(|line| line.contains("/memory ") && line.contains("size=")).unwrap();
        assert!(line.contains("noexec") && line.contains("size=1024k"), "{line}");
        assert!(fs::write(bench.at("memory/big"), vec![0; 2 << 20]).is_err());

        storage.options = ["remount", "size=8m"].map(String::from).to_vec();
        bench.storages.update_ephemeral(vec![storage.clone()]).await.unwrap();
        fs::write(bench.at("memory/big"), vec![0; 2 << 20]).unwrap();
        bench.storages.release("c1").await.unwrap();
        assert!(bench.at("memory/big").exists(), "it is the sandbox's: a container started again finds it");
        bench.storages.release_all().await.unwrap();
        assert!(!bench.at("memory").exists());
        storage.driver = "bind".into();
        assert!(bench.storages.update_ephemeral(vec![storage]).await.is_err());
    });
}

#[test]
fn huge_pages_are_reserved_and_given_back() {
    on_bench(async |bench| {
        const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let Ok(before) = fs::read_to_string(POOL) else {
            eprintln!("skipped: this kernel has no huge pages of 2 MiB");
            assert!(std::env::var_os("CI").is_none());
            return;
        };
        let mut storage = bench.storage("ephemeral", "nodev", "hugetlbfs", "huge");
        storage.options = ["pagesize=2M", "size=4M"].map(String::from).to_vec();
        bench.storages.acquire("c1", vec![storage.clone()]).await.unwrap();
        let more: u64 = fs::read_to_string(POOL).unwrap().trim().parse().unwrap();
        assert_eq!(more, before.trim().parse::<u64>().unwrap() + 2);
        bench.storages.release_all().await.unwrap();
        assert_eq!(fs::read_to_string(POOL).unwrap(), before);
        storage.options = vec!["pagesize=2M".into(), "size=1M".into()];
        assert!(bench.refused(storage.clone()).await.to_string().contains("multiple"));
        storage.options = vec!["size=4M".into()];
        assert!(bench.refused(storage).await.to_string().contains("pagesize"));
        assert_eq!(fs::read_to_string(POOL).unwrap(), before);
    });
}

/// Row A4 of the reliability tests, for sources.
#[test]
fn a_directory_and_a_file_are_bound() {
    on_bench(async |bench| {
        let before = mounts();
        fs::create_dir_all(bench.at("source")).unwrap();
        fs::write(bench.at("source/file"), "text").unwrap();
        let mut directory = bench.storage("bind", bench.at("source"), "bind", "a/directory");
        directory.options = ["ro", "nosuid", "rprivate"].map(String::from).to_vec();
        let file = bench.storage("bind", bench.at("source/file"), "", "a/file");
        bench.storages.acquire("c1", vec![directory.clone(), file]).await.unwrap();
        assert_eq!(fs::read_to_string(bench.at("a/directory/file")).unwrap(), "text");
        assert_eq!(fs::read_to_string(bench.at("a/file")).unwrap(), "text");
        assert!(fs::write(bench.at("a/directory/new"), "").is_err(), "it is read-only here too");
        fs::write(bench.at("source/new"), "").unwrap();
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts(), before);
        assert!(!bench.at("a").exists());

        directory.options = vec!["size=1m".into()];
        bench.refused(directory.clone()).await;
        directory.options = Vec::new();
        directory.source = bench.at("nowhere").display().to_string();
        assert!(bench.refused(directory.clone()).await.to_string().contains("os error 2"));
        symlink("source", bench.at("link")).unwrap();
        directory.source = bench.at("link").display().to_string();
        bench.refused(directory.clone()).await;
        directory.source = "relative".into();
        bench.refused(directory).await;
    });
}

#[test]
fn an_overlay_has_its_layers() {
    on_bench(async |bench| {
        let before = mounts();
        for layer in ["lower1", "lower2"] {
            fs::create_dir_all(bench.at(layer)).unwrap();
            fs::write(bench.at(layer).join(layer), layer).unwrap();
        }
        let mut storage = bench.storage("overlayfs", "overlay", "overlay", "root");
        let lower = format!("lowerdir={}:{}", bench.at("lower1").display(), bench.at("lower2").display());
        storage.options = vec![lower.clone()];
        bench.storages.acquire("c1", vec![storage.clone()]).await.unwrap();
        assert!(bench.at("root/lower1").exists() && bench.at("root/lower2").exists());
        assert!(fs::write(bench.at("root/x"), "").is_err(), "without an upper layer it is read-only");
        bench.storages.release("c1").await.unwrap();

        // The upper layer of an overlay cannot be on an overlay, which a CI machine's root may be.
        let user = format!("test-{}", std::process::id());
        storage.options.push("io.katacontainers.fs-opt.overlay-rw".into());
        match bench.storages.acquire(&user, vec![storage.clone()]).await {
            Ok(()) => fs::write(bench.at("root/x"), "").unwrap(),
            Err(error) => assert!(error.to_string().contains("os error 22"), "{error}"),
        }
        bench.storages.release(&user).await.unwrap();
        assert_eq!(mounts(), before);
        assert!(!std::path::Path::new("/run/kata-containers").join(&user).exists());
        storage.options = vec![lower, "no_such_option=1".into()];
        bench.refused(storage).await;
    });
}

#[test]
fn a_local_directory_is_made_as_asked_and_stays_for_the_sandbox() {
    on_bench(async |bench| {
        let mut storage = bench.storage("local", "local", "local", "shared/empty");
        storage.options = ["mode=0777", "fsgid=99"].map(String::from).to_vec();
        bench.storages.acquire("c1", vec![storage.clone()]).await.unwrap();
        let found = fs::metadata(bench.at("shared/empty")).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (99, 0o2777));
        fs::write(bench.at("shared/empty/file"), "").unwrap();
        bench.storages.release("c1").await.unwrap();
        bench.storages.acquire("c2", vec![storage.clone()]).await.unwrap();
        assert!(bench.at("shared/empty/file").exists());
        bench.storages.release_all().await.unwrap();
        assert!(!bench.at("shared").exists());
        storage.options = vec!["mode=9".into()];
        bench.refused(storage).await;
    });
}

#[test]
fn shares_of_a_host_that_is_not_there_fail_and_leave_nothing() {
    on_bench(async |bench| {
        for (driver, fstype) in [("virtio-fs", "virtiofs"), ("9p", "9p")] {
            let error =
                bench.refused(bench.storage(driver, "kataShared", fstype, "share/d")).await.to_string();
            assert!(error.contains(fstype) && error.contains("kataShared"), "{error}");
            bench.refused(bench.storage(driver, "", fstype, "share/d")).await;
        }
    });
}

#[test]
fn a_driver_that_does_not_exist_is_named_with_those_that_do() {
    on_bench(async |bench| {
        let error = bench.refused(bench.storage("floppy", "a", "vfat", "a")).await;
        assert!(matches!(error, StorageError::Driver { .. }));
        let text = error.to_string();
        assert!(
            text.starts_with("Failed to find the storage handler \"floppy\"") && text.contains("virtio-fs"),
            "{text}"
        );
    });
}
