//! Devices on top of devices, by the kernel's device mapper: encrypted disks, such as are checked, and parts.
//!
//! A mapping carries the number of the storage it is made for in its uuid, and is taken away by that: whoever
//! reads the journal finds it, and one of another storage that has the same name is never touched. One that is
//! still open, in the mounts of a container that is just ending, goes by itself with its last user.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::stat::{major, minor},
};
use rustjail::sys::device_mapper::{self, HEADER};

use super::{
    error::{Result, failed_to},
    steps::Steps,
    undo::Undo,
};
use crate::init::modules;

pub(super) mod crypt;
pub(super) mod linear;
pub(super) mod verity;

const CONTROL: &str = "/dev/mapper/control";
/// What makes that node; the targets' own modules the kernel asks for itself.
const MODULE: &str = "dm-mod";
/// The device mapper counts in these, whatever the disk does.
const SECTOR: u64 = 512;
const VERSION: [u32; 3] = [4, 0, 0];
const CREATE: u8 = 3;
const REMOVE: u8 = 4;
const RESUME: u8 = 6;
const LOAD: u8 = 9;
/// Flags of `struct dm_ioctl`: read-only, "wipe what you were given", and "when nobody has it open any more".
const READ_ONLY: u32 = 1;
const SECURE: u32 = 1 << 15;
const DEFERRED: u32 = 1 << 17;
/// Offsets in `struct dm_ioctl`.
const DATA_START: usize = 16;
const TARGETS: usize = 20;
const FLAGS: usize = 28;
const DEVICE: usize = 40;
const NAME: usize = 48;
const UUID: usize = 176;
/// What fits in either, less the NUL.
const TEXT_MAX: usize = 127;
/// `struct dm_target_spec`: start, length, status, next, and 16 bytes of type.
const SPEC: usize = 40;

/// Where a device is in the kernel's tables.
struct Place {
    /// As a table has it.
    number: String,
    sectors: u64,
}

impl Place {
    fn of(disk: &Path) -> Result<Self> {
        let failed = || format!("measure {}", disk.display());
        let number = fs::metadata(disk).map_err(failed_to(failed))?.rdev();
        let number = format!("{}:{}", major(number), minor(number));
        let text = fs::read_to_string(format!("/sys/dev/block/{number}/size")).map_err(failed_to(failed))?;
        let sectors = text.trim().parse().map_err(io::Error::other).map_err(failed_to(failed))?;
        Ok(Self { number, sectors })
    }

    /// The number as part of a name.
    fn label(&self) -> String {
        self.number.replace(':', "-")
    }
}

/// What a mapping does, from its beginning to its end. The parameters may hold a key.
struct Target {
    kind: &'static str,
    sectors: u64,
    parameters: String,
    read_only: bool,
}

impl Drop for Target {
    fn drop(&mut self) {
        std::hint::black_box(std::mem::take(&mut self.parameters).into_bytes().as_mut_slice()).fill(0);
    }
}

/// Makes the mapping `name` over `disk`, and answers its node.
fn map(disk: &Path, name: &str, target: Target, steps: &mut Steps) -> Result<PathBuf> {
    let failed = || format!("put dm-{} over {} as {name}", target.kind, disk.display());
    let control = control()
        .map_err(failed_to(|| format!("open {CONTROL} to put dm-{} over {}", target.kind, disk.display())))?;
    let uuid = format!("BERTH-{name}-{}", steps.record.sequence);
    steps.will(Undo::Mapping { uuid: uuid.clone() })?;
    let mut create = header(0);
    put(&mut create, NAME, name.as_bytes());
    put(&mut create, UUID, uuid.as_bytes());
    device_mapper::command(control.as_fd(), CREATE, &mut create).map_err(failed_to(failed))?;
    let mut load = load(&uuid, &target);
    let loaded = device_mapper::command(control.as_fd(), LOAD, &mut load);
    std::hint::black_box(load.as_mut_slice()).fill(0);
    loaded.map_err(failed_to(failed))?;
    let mut resume = named(&uuid, 0);
    device_mapper::command(control.as_fd(), RESUME, &mut resume).map_err(failed_to(failed))?;
    let device =
        resume.get(DEVICE..NAME).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
    Ok(PathBuf::from(format!("/dev/dm-{}", minor(device))))
}

/// Removes a mapping that is there.
pub(super) fn remove(uuid: &str) -> Result<()> {
    let open = OpenOptions::new().read(true).write(true).open(CONTROL);
    let removed = match open {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(control) => device_mapper::command(control.as_fd(), REMOVE, &mut named(uuid, DEFERRED)),
    };
    match removed {
        Err(error) if error.raw_os_error() != Some(Errno::ENXIO as i32) => {
            Err(failed_to(|| format!("remove the mapping {uuid}"))(error))
        }
        _ => Ok(()),
    }
}

fn control() -> io::Result<File> {
    let open = || OpenOptions::new().read(true).write(true).open(CONTROL);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            modules::request(MODULE, "").map_err(io::Error::other)?;
            open()
        }
        opened => opened,
    }
}

/// A `struct dm_ioctl` for no mapping yet.
fn header(flags: u32) -> Vec<u8> {
    let mut buffer = vec![0; HEADER];
    for (index, number) in VERSION.into_iter().enumerate() {
        put(&mut buffer, index * 4, &number.to_ne_bytes());
    }
    put(&mut buffer, FLAGS, &flags.to_ne_bytes());
    buffer
}

/// For the one that has `uuid`.
fn named(uuid: &str, flags: u32) -> Vec<u8> {
    let mut buffer = header(flags);
    put(&mut buffer, UUID, uuid.as_bytes());
    buffer
}

/// The command that gives a mapping its table.
fn load(uuid: &str, target: &Target) -> Vec<u8> {
    let mut buffer = named(uuid, if target.read_only { SECURE | READ_ONLY } else { SECURE });
    put(&mut buffer, DATA_START, &(HEADER as u32).to_ne_bytes());
    put(&mut buffer, TARGETS, &1_u32.to_ne_bytes());
    // One allocation: what is outgrown would keep a copy of the key.
    buffer.reserve_exact(SPEC + target.parameters.len() + 8);
    buffer.resize(HEADER + SPEC, 0);
    put(&mut buffer, HEADER + 8, &target.sectors.to_ne_bytes());
    put(&mut buffer, HEADER + 24, target.kind.as_bytes());
    buffer.extend_from_slice(target.parameters.as_bytes());
    buffer.push(0);
    buffer.resize(buffer.len().next_multiple_of(8), 0);
    buffer
}

/// Text that is too long for its field is cut, all of it by the same rule.
fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    for (place, byte) in buffer.iter_mut().skip(at).zip(bytes.iter().take(TEXT_MAX)) {
        *place = *byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures() {
        let target = Target { kind: "crypt", sectors: 0x1122, parameters: "a b".into(), read_only: true };
        let buffer = load("uuid", &target);
        assert_eq!(buffer.len() % 8, 0);
        assert_eq!(buffer[NAME..NAME + 1], *b"\0");
        assert_eq!(buffer[UUID..UUID + 5], *b"uuid\0");
        assert_eq!(buffer[DATA_START..DATA_START + 4], 312_u32.to_ne_bytes());
        assert_eq!(buffer[FLAGS..FLAGS + 4], (SECURE | READ_ONLY).to_ne_bytes());
        assert_eq!(buffer[HEADER + 8..HEADER + 16], 0x1122_u64.to_ne_bytes());
        assert_eq!(buffer[HEADER + 24..HEADER + 30], *b"crypt\0");
        assert_eq!(buffer[HEADER + SPEC..HEADER + SPEC + 4], *b"a b\0");
    }
}
