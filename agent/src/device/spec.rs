//! The guest's device numbers in a configuration that has the host's.
//!
//! All devices are rewritten in one pass over what the host sent: a number of the guest may be the host's number
//! of another device, so one after the other would rewrite twice.

use std::path::Path;

use oci_spec::runtime::{LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType, Spec};

use super::{DeviceError, Found, Node, Result};

/// Puts `devices` into `spec`: nodes, device rules, and addresses in the environment.
pub fn apply(spec: &mut Spec, devices: &[Found]) -> Result<()> {
    if devices.is_empty() {
        return Ok(());
    }
    let mut linux = spec.linux().clone().unwrap_or_default();
    let mut nodes = linux.devices().clone().unwrap_or_default();
    let mut resources = linux.resources().clone().unwrap_or_default();
    let mut rules = resources.devices().clone().unwrap_or_default();

    let changes = plan(&nodes, devices)?;
    for rule in &mut rules {
        let change = changes.iter().find(|change| names(rule, &change.host));
        if let Some(Change { node, .. }) = change {
            rule.set_major(Some(node.major)).set_minor(Some(node.minor));
        }
    }
    for Change { index, node, path, .. } in &changes {
        if let Some(device) = nodes.get_mut(*index) {
            device.set_major(node.major).set_minor(node.minor).set_typ(kind(node));
            if let Some(path) = *path {
                device.set_path(path.clone());
            }
        }
        rules.push(allow(node));
    }
    for companion in devices.iter().flat_map(|device| &device.companions) {
        if !nodes.iter().any(|device| device.path() == &companion.path) {
            nodes.push(listed(companion));
        }
        rules.push(allow(companion));
    }
    resources.set_devices(Some(rules));
    linux.set_devices(Some(nodes)).set_resources(Some(resources));
    spec.set_linux(Some(linux));
    Ok(())
}

/// One node of the configuration and what becomes of it.
struct Change<'a> {
    index: usize,
    host: LinuxDevice,
    node: &'a Node,
    path: Option<&'a std::path::PathBuf>,
}

fn plan<'a>(nodes: &[LinuxDevice], devices: &'a [Found]) -> Result<Vec<Change<'a>>> {
    let mut changes: Vec<Change<'a>> = Vec::new();
    for device in devices.iter().filter(|device| !device.container_path.is_empty()) {
        let Some(node) = &device.node else { continue };
        let place = Path::new(&device.container_path);
        let missing = || DeviceError::Invalid {
            device: format!("{:?}", device.container_path),
            problem: "is not among linux.devices: Missing devices in OCI spec".to_owned(),
        };
        let found = nodes.iter().enumerate().find(|(_, listed)| listed.path() == place);
        let (index, host) = found.ok_or_else(missing)?;
        if changes.iter().any(|change| change.index == index) {
            let problem = "is the container_path of two devices".to_owned();
            return Err(DeviceError::Invalid { device: format!("{:?}", device.container_path), problem });
        }
        changes.push(Change { index, host: host.clone(), node, path: device.new_path.as_ref() });
    }
    Ok(changes)
}

/// Whether `rule` is about the one device that the host sent as `device`.
fn names(rule: &LinuxDeviceCgroup, device: &LinuxDevice) -> bool {
    let number = (rule.major(), rule.minor()) == (Some(device.major()), Some(device.minor()));
    number && rule.typ().is_none_or(|typ| typ == device.typ() || typ == LinuxDeviceType::A)
}

fn kind(node: &Node) -> LinuxDeviceType {
    if node.block { LinuxDeviceType::B } else { LinuxDeviceType::C }
}

fn allow(node: &Node) -> LinuxDeviceCgroup {
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(true)
        .set_typ(Some(kind(node)))
        .set_major(Some(node.major))
        .set_minor(Some(node.minor))
        .set_access(Some("rwm".to_owned()));
    rule
}

fn listed(node: &Node) -> LinuxDevice {
    let mut device = LinuxDevice::default();
    device.set_path(node.path.clone()).set_typ(kind(node)).set_major(node.major).set_minor(node.minor);
    device
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::{
        LinuxBuilder, LinuxDeviceBuilder, LinuxDeviceCgroupBuilder, LinuxResourcesBuilder, SpecBuilder,
    };

    use super::*;

    fn spec(devices: &[(&str, i64, i64)]) -> Spec {
        let nodes: Vec<_> = devices
            .iter()
            .map(|(path, major, minor)| {
                let builder = LinuxDeviceBuilder::default().path(*path).typ(LinuxDeviceType::B);
                builder.major(*major).minor(*minor).build().unwrap()
            })
            .collect();
        let rules: Vec<_> = devices
            .iter()
            .map(|(_, major, minor)| {
                let builder = LinuxDeviceCgroupBuilder::default().allow(true).typ(LinuxDeviceType::B);
                builder.major(*major).minor(*minor).access("rw").build().unwrap()
            })
            .collect();
        let resources = LinuxResourcesBuilder::default().devices(rules).build().unwrap();
        let linux = LinuxBuilder::default().devices(nodes).resources(resources).build().unwrap();
        SpecBuilder::default().linux(linux).build().unwrap()
    }

    fn disk(container_path: &str, major: i64, minor: i64) -> Found {
        let node = Node { path: "/dev/vdx".into(), block: true, major, minor };
        Found { container_path: container_path.into(), node: Some(node), ..Found::default() }
    }

    type Numbers = Vec<(i64, i64)>;

    fn numbers(spec: &Spec) -> (Numbers, Numbers) {
        let linux = spec.linux().as_ref().unwrap();
        let nodes = linux.devices().iter().flatten().map(|d| (d.major(), d.minor())).collect();
        let rules = linux.resources().as_ref().unwrap().devices().iter().flatten();
        (nodes, rules.map(|rule| (rule.major().unwrap(), rule.minor().unwrap())).collect())
    }

    #[test]
    fn numbers_that_cross_are_rewritten_once() {
        let mut spec = spec(&[("/dev/a", 8, 0), ("/dev/b", 8, 16)]);
        apply(&mut spec, &[disk("/dev/a", 8, 16), disk("/dev/b", 8, 0), disk("", 9, 9)]).unwrap();
        let (nodes, rules) = numbers(&spec);
        assert_eq!(nodes, [(8, 16), (8, 0)]);
        assert_eq!(rules, [(8, 16), (8, 0), (8, 16), (8, 0)]);
    }

    #[test]
    fn a_path_that_is_not_listed_is_an_error() {
        let mut one = spec(&[("/dev/a", 8, 0)]);
        let error = apply(&mut one, &[disk("/dev/z", 1, 1)]).unwrap_err().to_string();
        assert!(error.contains("Missing devices in OCI spec"), "{error}");
        assert!(apply(&mut one, &[disk("/dev/a", 1, 1), disk("/dev/a", 1, 2)]).is_err());
        assert_eq!(numbers(&one).0, [(8, 0)], "nothing was changed");
    }

    #[test]
    fn a_group_moves_to_its_own_name_and_brings_companions() {
        let mut spec = spec(&[("/dev/vfio/33", 511, 0)]);
        let node = Node { path: "/dev/vfio/7".into(), block: false, major: 240, minor: 1 };
        let companion = Node { path: "/dev/infiniband/uverbs0".into(), block: false, major: 231, minor: 192 };
        let found = Found {
            container_path: "/dev/vfio/33".into(),
            new_path: Some("/dev/vfio/7".into()),
            node: Some(node),
            companions: vec![companion],
            ..Found::default()
        };
        apply(&mut spec, &[found]).unwrap();
        let devices = spec.linux().as_ref().unwrap().devices().clone().unwrap();
        assert_eq!(devices[0].path(), Path::new("/dev/vfio/7"));
        assert_eq!(devices[0].typ(), LinuxDeviceType::C);
        assert_eq!(devices[1].path(), Path::new("/dev/infiniband/uverbs0"));
    }
}
