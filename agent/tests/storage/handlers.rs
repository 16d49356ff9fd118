//! Every device handler beside every way in which a device can fail.
//!
//! | handler     | wrong type              | missing         | real |
//! |-------------|-------------------------|-----------------|------|
//! | blk         | no PCI path; no disk    | deadline, cause | loop here; virtio in the VM |
//! | mmioblk     | a character device      | deadline, cause | loop |
//! | scsi        | no `ID:LUN`             | deadline, cause | VM |
//! | nvdimm      | a directory             | deadline, cause | VM |
//! | vfio-pci    | no address              | deadline, cause | recorded sysfs trees, in the module |
//! | vfio-pci-gk | no address              | deadline, cause | recorded sysfs trees, in the module |
//!
//! blk-ccw, vfio-ap and vfio-ap-cold exist on s390x only; their recorded trees are in `hotplug::ccw` and
//! `device::vfio_ap`. No machine with either kind of hardware is at hand, so these are proved against trees alone.

use std::{os::unix::fs::MetadataExt, time::Duration};

use berth_agent::{
    device::{Device, find, handler_names},
    hotplug::{Hotplug, Roots},
};
use nix::sys::stat::{major, minor};

use crate::bench::{Loop, on_bench};

fn device(kind: &str, id: &str, vm_path: &str, options: &[&str]) -> Device {
    Device {
        kind: kind.into(),
        id: id.into(),
        vm_path: vm_path.into(),
        container_path: "/dev/x".into(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    }
}

fn covered(cases: &[(Device, &str)]) {
    for handler in handler_names() {
        assert!(cases.iter().any(|(device, _)| device.kind == handler), "{handler} has no case");
    }
}

#[test]
fn what_is_no_such_device_is_refused_at_once() {
    on_bench(async |_bench| {
        let cases = [
            (device("blk", "2g", "", &[]), "PCI path"),
            (device("blk", "", "/dev/null", &[]), "a character device"),
            (device("mmioblk", "", "/dev/null", &[]), "a character device"),
            (device("mmioblk", "x", "", &[]), "has no vm_path"),
            (device("nvdimm", "", "/dev/shm", &[]), "a directory"),
            (device("nvdimm", "x", "", &[]), "has no vm_path"),
            (device("scsi", "1", "", &[]), "ID:LUN"),
            (device("vfio-pci", "v", "", &["nonsense"]), "nonsense"),
            (device("vfio-pci-gk", "v", "", &["nonsense"]), "nonsense"),
        ];
        covered(&cases);
        // Nothing of it may wait.
        let hotplug = Hotplug::new(Roots::default(), Duration::from_secs(600));
        for (device, why) in cases {
            let found =
                tokio::time::timeout(Duration::from_secs(60), find(std::slice::from_ref(&device), &hotplug))
                    .await;
            let error = found.expect("it is waited for").unwrap_err().to_string();
            assert!(error.contains(why), "{device:?}: {error}");
        }
    });
}

#[test]
fn a_device_that_never_comes_is_told_with_its_cause() {
    on_bench(async |_bench| {
        let cases = [
            (device("blk", "1d/1d", "", &[]), "PCI"),
            (device("blk", "", "/dev/vdzx", &[]), "there is no /dev/vdzx"),
            (device("mmioblk", "", "/dev/vdzx", &[]), "there is no /dev/vdzx"),
            (device("nvdimm", "", "/dev/pmem79", &[]), "there is no /dev/pmem79"),
            (device("scsi", "252:3", "", &[]), "no SCSI host has a unit 252:3"),
            (device("vfio-pci", "v", "", &["0000:65:00.0=1c/1c"]), "PCI"),
            (device("vfio-pci-gk", "v", "", &["0000:65:00.0=1c/1c"]), "PCI"),
        ];
        covered(&cases);
        let hotplug = Hotplug::new(Roots::default(), Duration::from_millis(20));
        for (device, why) in cases {
            let error = find(std::slice::from_ref(&device), &hotplug).await.unwrap_err().to_string();
            assert!(error.contains("did not appear within 0.02 s"), "{device:?}: {error}");
            assert!(error.contains(why), "{device:?}: {error}");
        }
    });
}

#[test]
fn a_disk_has_the_numbers_that_it_has_here() {
    on_bench(async |bench| {
        let disk = Loop::blank(&bench.dir, "blank", 8);
        let number = std::fs::metadata(&disk.node).unwrap().rdev();
        let hotplug = Hotplug::new(Roots::default(), Duration::from_secs(60));
        for kind in ["blk", "mmioblk", "nvdimm"] {
            let found = find(&[device(kind, "", &disk.node, &[])], &hotplug).await.unwrap().remove(0);
            let node = found.node.unwrap();
            assert!(node.block && node.path.to_str() == Some(disk.node.as_str()), "{kind}: {node:?}");
            let numbers = (node.major.cast_unsigned(), node.minor.cast_unsigned());
            assert_eq!(numbers, (major(number), minor(number)), "{kind}");
        }
    });
}
