//! Storages and devices as they are on the wire.

use berth_protocols::{agent as wire, types::FSGroupChangePolicy};

use crate::{
    device::Device,
    storage::{FsGroup, Storage},
};

/// Converts a request's storages. What is wrong with one its driver tells.
pub(super) fn storages(wire: Vec<wire::Storage>) -> Vec<Storage> {
    wire.into_iter().map(storage).collect()
}

fn storage(wire: wire::Storage) -> Storage {
    let fs_group = wire.fs_group.into_option().map(|group| FsGroup {
        id: group.group_id,
        on_root_mismatch: group.group_change_policy.enum_value() == Ok(FSGroupChangePolicy::OnRootMismatch),
    });
    Storage {
        driver: wire.driver,
        driver_options: wire.driver_options,
        source: wire.source,
        fstype: wire.fstype,
        options: wire.options,
        mount_point: wire.mount_point.into(),
        fs_group,
        shared: wire.shared,
        layers: Vec::new(),
    }
}

/// Converts a request's devices.
pub(super) fn devices(wire: Vec<wire::Device>) -> Vec<Device> {
    let device = |wire: wire::Device| Device {
        id: wire.id,
        kind: wire.type_,
        vm_path: wire.vm_path,
        container_path: wire.container_path,
        options: wire.options,
    };
    wire.into_iter().map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_policy_that_is_not_known_changes_everything() {
        let group = |policy: i32| {
            let group = wire::FSGroup {
                group_id: 7,
                group_change_policy: protobuf::EnumOrUnknown::from_i32(policy),
                ..Default::default()
            };
            let wire = wire::Storage { fs_group: Some(group).into(), ..Default::default() };
            storages(vec![wire]).remove(0).fs_group.unwrap()
        };
        assert_eq!(group(0), FsGroup { id: 7, on_root_mismatch: false });
        assert_eq!(group(1), FsGroup { id: 7, on_root_mismatch: true });
        assert_eq!(group(9), FsGroup { id: 7, on_root_mismatch: false });
    }
}
