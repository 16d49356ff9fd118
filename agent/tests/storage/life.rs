//! Users, order, places, and workers that die.

use std::{fs, os::unix::fs::symlink};

use berth_agent::storage::{SANDBOX, StorageError};

use crate::bench::{Loop, mounts, on_bench};

#[test]
fn a_storage_goes_with_its_last_user() {
    on_bench(async |bench| {
        let before = mounts();
        let disk = Loop::formatted(&bench.dir, "ext4", 16);
        let storage = bench.storage("blk", &disk.node, "ext4", "volume");
        for user in [SANDBOX, "c1", "c2", "c1"] {
            bench.storages.acquire(user, vec![storage.clone(), storage.clone()]).await.unwrap();
        }
        assert_eq!(mounts().len(), before.len() + 1);
        for user in ["c1", "c1", SANDBOX, "never"] {
            bench.storages.release(user).await.unwrap();
            assert_eq!(mounts().len(), before.len() + 1);
        }
        bench.storages.release("c2").await.unwrap();
        assert_eq!(mounts(), before);

        let shared = berth_agent::storage::Storage { shared: true, ..storage };
        bench.storages.acquire("c1", vec![shared]).await.unwrap();
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts().len(), before.len() + 1);
        bench.storages.release_all().await.unwrap();
        assert_eq!(mounts(), before);
    });
}

/// Row H2 of the reliability tests.
#[test]
fn another_storage_at_the_same_place_is_refused() {
    on_bench(async |bench| {
        let disk = Loop::formatted(&bench.dir, "ext4", 16);
        bench.storages.acquire("c0", vec![bench.storage("blk", &disk.node, "ext4", "v")]).await.unwrap();
        let error = bench.refused(bench.storage("ephemeral", "tmpfs", "tmpfs", "v")).await;
        assert!(
            matches!(error, StorageError::Conflict { .. }) && error.to_string().contains("taken by blk"),
            "{error}"
        );
        // Mounted by others: theirs it stays.
        fs::create_dir(bench.at("theirs")).unwrap();
        crate::bench::run("mount", &["-t", "tmpfs", "theirs", &bench.at("theirs").display().to_string()]);
        let error = bench.refused(bench.storage("blk", &disk.node, "ext4", "theirs")).await;
        assert!(error.to_string().contains("finds \"theirs\" of type \"tmpfs\""), "{error}");
        bench
            .storages
            .acquire("c1", vec![bench.storage("ephemeral", "theirs", "tmpfs", "theirs")])
            .await
            .unwrap();
        let before = mounts();
        bench.storages.release_all().await.unwrap();
        assert_eq!(mounts().len(), before.len() - 1, "only the disk went");
    });
}

#[test]
fn nested_storages_are_unmounted_from_the_inside() {
    on_bench(async |bench| {
        let before = mounts();
        let disk = Loop::formatted(&bench.dir, "ext4", 16);
        let outer = bench.storage("blk", &disk.node, "ext4", "z");
        fs::create_dir(bench.at("source")).unwrap();
        let inner = bench.storage("bind", bench.at("source"), "bind", "z/a/b");
        bench.storages.acquire("c1", vec![outer, inner]).await.unwrap();
        assert_eq!(mounts().len(), before.len() + 2);
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts(), before);
    });
}

#[test]
fn one_that_fails_takes_those_before_it_along() {
    on_bench(async |bench| {
        let before = mounts();
        fs::create_dir(bench.at("source")).unwrap();
        let good = bench.storage("bind", bench.at("source"), "bind", "good");
        let bad = bench.storage("bind", bench.at("nowhere"), "bind", "bad");
        bench.storages.acquire("c1", vec![good.clone(), bad]).await.unwrap_err();
        bench.storages.release("c1").await.unwrap();
        assert_eq!(mounts(), before);
        // What is wrong at sight is told before anything is done.
        bench.storages.acquire("c1", vec![good, bench.storage("none", "", "", "x")]).await.unwrap_err();
        assert_eq!(mounts(), before);
    });
}

/// Rows H2 and A10 of the reliability tests (GHSA-fmg6-v47x-52wr).
#[test]
fn no_place_of_the_guests_own_and_none_behind_a_link() {
    on_bench(async |bench| {
        for path in ["/", "/etc/x", "/proc/1", "/dev/shm/x", "/usr", "/run/a/../../etc", "relative", ""] {
            let mut storage = bench.storage("ephemeral", "tmpfs", "tmpfs", "x");
            storage.mount_point = path.into();
            let error = bench.refused(storage).await;
            assert!(matches!(error, StorageError::Invalid { .. }), "{path:?}: {error}");
        }
        let mut own = bench.storage("ephemeral", "tmpfs", "tmpfs", "state/journal");
        bench.refused(own.clone()).await;
        symlink("/etc", bench.at("link")).unwrap();
        own.mount_point = bench.at("link/berth-test");
        let error = bench.refused(own).await.to_string();
        assert!(error.contains("no symbolic link is allowed"), "{error}");
        // A file in the way, of the directory and of the mount point itself.
        fs::write(bench.at("file"), "").unwrap();
        bench.refused(bench.storage("ephemeral", "tmpfs", "tmpfs", "file/below")).await;
        bench.refused(bench.storage("ephemeral", "tmpfs", "tmpfs", "file")).await;
    });
}

/// Row A2 of the reliability tests (CVE-2020-2024).
#[test]
fn a_link_put_in_the_way_before_the_end_leads_nowhere() {
    on_bench(async |bench| {
        fs::create_dir_all(bench.at("source")).unwrap();
        fs::create_dir_all(bench.at("other/v")).unwrap();
        crate::bench::run("mount", &["-t", "tmpfs", "bystander", &bench.at("other/v").display().to_string()]);
        bench
            .storages
            .acquire("c1", vec![bench.storage("bind", bench.at("source"), "bind", "p/v")])
            .await
            .unwrap();
        fs::rename(bench.at("p"), bench.at("moved")).unwrap();
        symlink("other", bench.at("p")).unwrap();
        let error = bench.storages.release("c1").await.unwrap_err().to_string();
        assert!(error.contains("os error 40"), "{error}");
        assert!(mounts().iter().any(|line| line.contains("bystander")), "another's mount was taken away");
        fs::remove_file(bench.at("p")).unwrap();
        fs::rename(bench.at("moved"), bench.at("p")).unwrap();
        bench.storages.release("c1").await.unwrap();
        assert!(!mounts().iter().any(|line| line.contains("/p/v")));
    });
}

#[test]
fn the_next_worker_goes_on_where_the_last_one_stopped() {
    on_bench(async |mut bench| {
        let before = mounts();
        let disk = Loop::formatted(&bench.dir, "ext4", 16);
        let storage = bench.storage("blk", &disk.node, "ext4", "volume");
        bench.storages.acquire("c1", vec![storage.clone()]).await.unwrap();
        bench.storages.acquire("c2", vec![storage.clone()]).await.unwrap();
        bench.take_over();
        bench.storages.recover(|user| user == "c2").await.unwrap();
        assert_eq!(mounts().len(), before.len() + 1, "c2 still uses it");
        bench.take_over();
        bench.storages.recover(|user| user == "c2").await.unwrap();
        bench.storages.acquire("c3", vec![storage]).await.unwrap();
        bench.storages.release("c2").await.unwrap();
        bench.take_over();
        bench.storages.recover(|_| false).await.unwrap();
        assert_eq!(mounts(), before);
        assert_eq!(fs::read_dir(bench.at("state/storages")).unwrap().count(), 0);
    });
}

/// As if the worker had died after each of the steps: the record says what may be there, and all of it goes.
#[test]
fn a_half_made_storage_is_undone_whatever_step_it_had_reached() {
    on_bench(async |mut bench| {
        let before = mounts();
        let disk = Loop::formatted(&bench.dir, "ext4", 16);
        let storage = bench.storage("blk", &disk.node, "ext4", "a/volume");
        bench.storages.acquire("c1", vec![storage]).await.unwrap();
        let records =
            || fs::read_dir(bench.dir.join("state/storages")).unwrap().map(|entry| entry.unwrap().path());
        let path = records().next().unwrap();
        let whole: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        bench.storages.release("c1").await.unwrap();
        let steps = whole["undo"].as_array().unwrap().len();
        assert_eq!(steps, 3, "two directories and a mount: {whole}");
        for done in 0..=steps {
            let mut record = whole.clone();
            record["ready"] = false.into();
            record["undo"] = whole["undo"].as_array().unwrap()[..done].to_vec().into();
            // The last step was written down and may or may not have been taken.
            for taken in [done, done.saturating_sub(1)] {
                for (step, name) in [(1, "a"), (2, "a/volume")] {
                    if taken >= step {
                        fs::create_dir(bench.at(name)).unwrap();
                    }
                }
                if taken == 3 {
                    crate::bench::run("mount", &[&disk.node, &bench.at("a/volume").display().to_string()]);
                }
                fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
                bench.take_over();
                bench.storages.recover(|_| true).await.unwrap();
                assert_eq!(mounts(), before, "{done} steps written, {taken} taken");
                assert!(!bench.at("a/volume").exists());
                let _ = fs::remove_dir(bench.at("a"));
            }
        }
    });
}
