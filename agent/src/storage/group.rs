//! Storages that together are one: the layers of a container's root.
//!
//! A host sends each layer as a storage of its own, all with one mount point. They have to be taken together, in
//! whatever places of the request they are, and their order is the order of the layers, the topmost first. What
//! can be told without touching the guest is told here: one upper layer at most, and what protects a layer only
//! where a disk is below it.

use std::collections::BTreeSet;

use super::{
    drivers::Driver,
    error::Result,
    layer::{Layer, MULTI_LAYER, Role},
    request::Storage,
};

/// Puts the layers among `storages` together, each whole in the place of its first layer.
pub(super) fn group(storages: Vec<Storage>) -> Result<Vec<Storage>> {
    let mut whole: Vec<Storage> = Vec::new();
    for storage in storages {
        let layer = Layer::of(&storage)?;
        if !layer.grouped && storage.driver != MULTI_LAYER {
            if layer.needs_disk() && !Driver::named(&storage.driver)?.is_disk() {
                let problem =
                    format!("is to be checked or a partition, and {:?} has no disk", storage.driver);
                return Err(storage.invalid(problem));
            }
            whole.push(storage);
            continue;
        }
        let same =
            |group: &&mut Storage| !group.layers.is_empty() && group.mount_point == storage.mount_point;
        match whole.iter_mut().find(same) {
            Some(group) => {
                group.shared |= storage.shared;
                group.fs_group = group.fs_group.or(storage.fs_group);
                group.layers.push(storage);
            }
            None => whole.push(Storage {
                driver: MULTI_LAYER.to_owned(),
                fstype: "overlay".to_owned(),
                mount_point: storage.mount_point.clone(),
                fs_group: storage.fs_group,
                shared: storage.shared,
                layers: vec![storage],
                ..Storage::default()
            }),
        }
    }
    whole.iter().filter(|storage| !storage.layers.is_empty()).try_for_each(check)?;
    Ok(whole)
}

fn check(storage: &Storage) -> Result<()> {
    let (mut uppers, mut lowers, mut seen) = (0, 0, BTreeSet::new());
    for part in &storage.layers {
        let layer = Layer::of(part)?;
        let driver = Driver::named(&part.driver)?;
        match layer.role_of(part)? {
            Role::Upper if driver.is_disk() || driver == Driver::Ephemeral => uppers += 1,
            Role::Lower if driver.is_disk() => lowers += 1,
            Role::Upper | Role::Lower => {
                return Err(storage.invalid(format!("has a layer of the driver {:?}", part.driver)));
            }
        }
        if layer.needs_disk() && !driver.is_disk() {
            return Err(storage.invalid(format!("has a layer to check, and {:?} has no disk", part.driver)));
        }
        if !seen.insert(part.identity()) {
            return Err(storage.invalid(format!("has the layer {:?} twice", part.identity())));
        }
    }
    match (uppers, lowers) {
        (0 | 1, 1..) => Ok(()),
        (_, 0) => Err(storage.invalid("has no lower layer")),
        _ => Err(storage.invalid(format!("has {uppers} upper layers; there can be one"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(driver: &str, source: &str, fstype: &str, options: &[&str]) -> Storage {
        Storage {
            driver: driver.into(),
            source: source.into(),
            fstype: fstype.into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            mount_point: "/run/root".into(),
            ..Storage::default()
        }
    }

    const MULTI: &str = "X-kata.multi-layer=true";

    fn refused(storages: Vec<Storage>) -> String {
        group(storages).unwrap_err().to_string()
    }

    #[test]
    fn layers_of_one_mount_point_become_one() {
        let mut other = part("blk", "03", "erofs", &[MULTI]);
        other.mount_point = "/run/other".into();
        let storages = vec![
            part("blk", "01", "ext4", &["X-kata.overlay-upper", MULTI]),
            part("local", "", "", &[]),
            part("blk", "02", "erofs", &["X-kata.overlay-lower", MULTI]),
            other,
            part(MULTI_LAYER, "/dev/vdx", "erofs", &[]),
        ];
        let whole = group(storages).unwrap();
        let drivers: Vec<_> = whole.iter().map(|storage| (&*storage.driver, storage.layers.len())).collect();
        assert_eq!(drivers, [(MULTI_LAYER, 3), ("local", 0), (MULTI_LAYER, 1)]);
        assert_eq!(whole[0].identity(), "01 02 /dev/vdx");
    }

    #[test]
    fn what_cannot_be_put_together_is_refused() {
        let lower = || part("blk", "02", "erofs", &[MULTI]);
        let upper = |source| part("blk", source, "ext4", &[MULTI]);
        assert!(refused(vec![upper("1")]).contains("no lower layer"));
        assert!(refused(vec![upper("1"), upper("3"), lower()]).contains("has 2 upper layers"));
        assert!(refused(vec![lower(), lower()]).contains("twice"));
        assert!(refused(vec![part("blk", "1", "xfs", &[MULTI])]).contains("neither"));
        assert!(refused(vec![part("virtio-fs", "1", "erofs", &[MULTI])]).contains("driver \"virtio-fs\""));
        assert!(refused(vec![part("ephemeral", "", "erofs", &[MULTI])]).contains("driver \"ephemeral\""));
        assert!(group(vec![lower(), part("ephemeral", "tmpfs", "tmpfs", &[MULTI])]).is_ok());
    }

    #[test]
    fn what_is_to_be_checked_has_a_disk() {
        let options = ["X-kata.gpt-partitioned=true", "X-kata.partition-number=1"];
        assert!(refused(vec![part("virtio-fs", "tag", "virtiofs", &options)]).contains("has no disk"));
        assert!(group(vec![part("blk", "1", "erofs", &options)]).is_ok());
        let other = part("blk", "1", "erofs", &["X-kata.gpt-partitioned=true", "X-kata.partition-number=2"]);
        assert_ne!(part("blk", "1", "erofs", &options).identity(), other.identity());
    }
}
