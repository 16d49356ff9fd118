//! The device nodes of a container.

use std::path::Path;

use oci_spec::runtime::{LinuxDevice, LinuxDeviceType};

use super::{CompileError, paths};
use crate::plan::{Device, DeviceKind};

/// What every container has (runtime-spec, "Default Devices"); `console` and `ptmx` are made otherwise.
const DEFAULTS: [(&str, u32, u32); 6] = [
    ("/dev/null", 1, 3),
    ("/dev/zero", 1, 5),
    ("/dev/full", 1, 7),
    ("/dev/random", 1, 8),
    ("/dev/urandom", 1, 9),
    ("/dev/tty", 5, 0),
];

/// The defaults, of which `listed` takes the place by path, then the rest of `listed`.
pub(super) fn of_container(listed: Option<&Vec<LinuxDevice>>) -> Result<Vec<Device>, CompileError> {
    let default = |(path, major, minor): (&str, u32, u32)| Device {
        path: path.into(),
        kind: DeviceKind::Character,
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
    };
    let mut devices: Vec<Device> = DEFAULTS.into_iter().map(default).collect();
    for device in listed.into_iter().flatten() {
        let device = convert(device)?;
        match devices.iter_mut().find(|other| other.path == device.path) {
            Some(other) => *other = device,
            None => devices.push(device),
        }
    }
    Ok(devices)
}

fn convert(device: &LinuxDevice) -> Result<Device, CompileError> {
    let path = paths::in_container("linux.devices path", device.path())?;
    if path == Path::new("/") {
        return Err(CompileError::invalid("linux.devices path", "/", "is not the path of a device"));
    }
    let kind = match device.typ() {
        LinuxDeviceType::B => DeviceKind::Block,
        LinuxDeviceType::C | LinuxDeviceType::U => DeviceKind::Character,
        LinuxDeviceType::P => DeviceKind::Fifo,
        LinuxDeviceType::A => {
            return Err(CompileError::invalid(
                "linux.devices type",
                "a",
                "is for device rules, not for nodes",
            ));
        }
    };
    // The kernel's own limits: MINORBITS of linux/kdev_t.h is 20.
    let number = |value: i64, bits: u32| {
        u32::try_from(value).ok().filter(|number| number >> bits == 0).ok_or_else(|| {
            CompileError::invalid(
                "linux.devices",
                format!("{} number {value}", path.display()),
                "is out of range",
            )
        })
    };
    let (major, minor) = match kind {
        DeviceKind::Fifo => (0, 0),
        _ => (number(device.major(), 12)?, number(device.minor(), 20)?),
    };
    let mode = device.file_mode().unwrap_or(0o666) & 0o7777;
    let (uid, gid) = (device.uid().unwrap_or(0), device.gid().unwrap_or(0));
    // -1 tells chown to leave an owner as it is.
    for (field, id) in [("linux.devices uid", uid), ("linux.devices gid", gid)] {
        if id == u32::MAX {
            return Err(CompileError::Id { field, id });
        }
    }
    Ok(Device { path, kind, major, minor, mode, uid, gid })
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::LinuxDeviceBuilder;

    use super::*;

    fn listed(path: &str, typ: LinuxDeviceType, major: i64) -> Result<Vec<Device>, CompileError> {
        let device = LinuxDeviceBuilder::default().path(path).typ(typ).major(major).minor(1).build().unwrap();
        of_container(Some(&vec![device]))
    }

    #[test]
    fn a_listed_device_takes_the_place_of_a_default() {
        let devices = listed("/dev//null", LinuxDeviceType::C, 9).unwrap();
        assert_eq!(devices.len(), DEFAULTS.len());
        assert_eq!((devices[0].major, devices[0].minor), (9, 1));
    }

    #[test]
    fn fifos_have_no_numbers() {
        let fifo = listed("/dev/log", LinuxDeviceType::P, -1).unwrap().pop().unwrap();
        assert_eq!((fifo.kind, fifo.major, fifo.minor), (DeviceKind::Fifo, 0, 0));
    }

    #[test]
    fn bad_devices_are_refused() {
        assert!(listed("/dev/../x", LinuxDeviceType::C, 1).is_err());
        assert!(listed("/", LinuxDeviceType::C, 1).is_err());
        assert!(listed("/dev/x", LinuxDeviceType::A, 1).is_err());
        assert!(listed("/dev/x", LinuxDeviceType::C, -1).is_err());
        assert!(listed("/dev/x", LinuxDeviceType::C, 1 << 12).is_err());
    }
}
