//! How full a volume is, and growing it.

use std::fs;

use berth_agent::storage::volume;

use crate::bench::{Loop, on_bench};

/// Growing an ext4 takes CAP_SYS_RESOURCE, which root in a container may lack: the test in the VM has it.
#[test]
fn volumes_grow_while_they_are_mounted() {
    on_bench(async |bench| {
        for (fstype, before, after) in [("xfs", 320, 640), ("btrfs", 160, 320)] {
            let disk = Loop::formatted(&bench.dir, fstype, before);
            let storage = bench.storage("blk", &disk.node, fstype, fstype);
            bench.storages.acquire("c1", vec![storage]).await.unwrap_or_else(|error| panic!("{error}"));
            let path = bench.at(fstype);
            fs::write(path.join("file"), "kept").unwrap();
            let (small, inodes) = volume::stats(&path).unwrap();
            assert!(small.available <= small.total && inodes.available <= inodes.total);
            let too_much = volume::resize(&path, after << 20).unwrap_err().to_string();
            assert!(too_much.contains("grow the device first"), "{too_much}");
            disk.grow(after);
            volume::resize(&path, 0).unwrap_or_else(|error| panic!("{fstype}: {error}"));
            let (large, _) = volume::stats(&path).unwrap();
            assert!(large.total > small.total * 3 / 2, "{fstype}: {small:?} {large:?}");
            assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "kept");
            if fstype != "btrfs" {
                assert!(volume::resize(&path, 1 << 20).unwrap_err().to_string().contains("cannot shrink"));
            }
            bench.storages.release("c1").await.unwrap();
        }
    });
}

#[test]
fn what_cannot_grow_says_so() {
    on_bench(async |bench| {
        bench.storages.acquire("c1", vec![bench.storage("ephemeral", "tmpfs", "tmpfs", "m")]).await.unwrap();
        let error = volume::resize(&bench.at("m"), 1 << 30).unwrap_err().to_string();
        assert!(error.contains("only file systems on a block device grow"), "{error}");
        let error = volume::resize(&bench.dir, 0).unwrap_err().to_string();
        assert!(error.contains("not the root of a mounted file system"), "{error}");
        assert!(volume::resize(&bench.at("none"), 0).is_err());
        assert!(volume::stats(&bench.at("none")).is_err());
        bench.storages.release_all().await.unwrap();
    });
}
