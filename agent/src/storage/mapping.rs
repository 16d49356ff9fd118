//! Devices on top of devices, by the kernel's device mapper: encrypted disks, and such as are checked.
//!
//! A mapping is named after the disk below it, so it can be taken away by whoever reads the journal, and a disk
//! has at most one. Keys are drawn here, given to the kernel and to nobody else: what was written under one
//! cannot be read once the mapping is gone.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
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

const CONTROL: &str = "/dev/mapper/control";
const VERSION: [u32; 3] = [4, 0, 0];
const CREATE: u8 = 3;
const REMOVE: u8 = 4;
const RESUME: u8 = 6;
const LOAD: u8 = 9;
/// Flags of `struct dm_ioctl`: read-only, and "wipe what you were given".
const READ_ONLY: u32 = 1;
const SECURE: u32 = 1 << 15;
/// Offsets in `struct dm_ioctl`.
const DATA_START: usize = 16;
const TARGETS: usize = 20;
const FLAGS: usize = 28;
const DEVICE: usize = 40;
const NAME: usize = 48;
const NAME_MAX: usize = 127;
/// `struct dm_target_spec`: start, length, status, next, and 16 bytes of type.
const SPEC: usize = 40;
/// AES-256 in XTS mode has two keys.
const KEY: usize = 64;

/// One mapping over a whole device.
struct Table<'a> {
    sectors: u64,
    target: &'a str,
    parameters: &'a str,
    read_only: bool,
}

/// Puts encryption with a key of its own over `disk`; answers the node to use instead.
pub(super) fn encrypt(disk: &Path, steps: &mut Steps) -> Result<PathBuf> {
    let (number, sectors) = measure(disk)?;
    let mut key = [0; KEY];
    let drawn = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut key));
    drawn.map_err(failed_to(|| format!("draw a key for {}", disk.display())))?;
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    key.fill(0);
    let parameters = format!("aes-xts-plain64 {hex} 0 {number} 0");
    let table = Table { sectors, target: "crypt", parameters: &parameters, read_only: false };
    map(disk, &format!("berth-crypt-{}", number.replace(':', "-")), &table, steps)
}

/// The numbers of a disk as the kernel's tables have them, and its length in sectors.
pub(super) fn measure(disk: &Path) -> Result<(String, u64)> {
    let failed = || format!("measure {}", disk.display());
    let number = fs::metadata(disk).map_err(failed_to(failed))?.rdev();
    let number = format!("{}:{}", major(number), minor(number));
    let text = fs::read_to_string(format!("/sys/dev/block/{number}/size")).map_err(failed_to(failed))?;
    let sectors = text.trim().parse().map_err(io::Error::other).map_err(failed_to(failed))?;
    Ok((number, sectors))
}

fn map(disk: &Path, name: &str, table: &Table<'_>, steps: &mut Steps) -> Result<PathBuf> {
    let failed = || format!("put {} over {}", table.target, disk.display());
    let control = control().map_err(failed_to(|| {
        format!(
            "open {CONTROL} (is the kernel module dm-{} loaded?) to put {} over {}",
            table.target,
            table.target,
            disk.display()
        )
    }))?;
    steps.will(Undo::Mapping { name: name.to_owned() })?;
    let mut header = header(name, 0);
    device_mapper::command(control.as_fd(), CREATE, &mut header).map_err(failed_to(failed))?;
    let mut load = self::load(name, table);
    let loaded = device_mapper::command(control.as_fd(), LOAD, &mut load);
    load.fill(0);
    loaded.map_err(failed_to(failed))?;
    let mut resume = self::header(name, 0);
    device_mapper::command(control.as_fd(), RESUME, &mut resume).map_err(failed_to(failed))?;
    let device =
        resume.get(DEVICE..NAME).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes);
    Ok(PathBuf::from(format!("/dev/dm-{}", minor(device))))
}

/// Removes a mapping that is there.
pub(super) fn remove(name: &str) -> Result<()> {
    let removed = match control() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(control) => device_mapper::command(control.as_fd(), REMOVE, &mut header(name, 0)),
    };
    match removed {
        Err(error) if error.raw_os_error() != Some(Errno::ENXIO as i32) => {
            Err(failed_to(|| format!("remove the mapping {name}"))(error))
        }
        _ => Ok(()),
    }
}

fn control() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(CONTROL)
}

/// A `struct dm_ioctl` for the mapping `name`.
fn header(name: &str, flags: u32) -> Vec<u8> {
    let mut buffer = vec![0; HEADER];
    for (index, number) in VERSION.into_iter().enumerate() {
        put(&mut buffer, index * 4, &number.to_ne_bytes());
    }
    put(&mut buffer, FLAGS, &flags.to_ne_bytes());
    put(&mut buffer, NAME, name.as_bytes().get(..NAME_MAX).unwrap_or(name.as_bytes()));
    buffer
}

/// The command that gives a mapping its table.
fn load(name: &str, table: &Table<'_>) -> Vec<u8> {
    let mut buffer = header(name, if table.read_only { SECURE | READ_ONLY } else { SECURE });
    put(&mut buffer, DATA_START, &(HEADER as u32).to_ne_bytes());
    put(&mut buffer, TARGETS, &1_u32.to_ne_bytes());
    // One allocation: what is outgrown would keep a copy of the key.
    buffer.reserve_exact(SPEC + table.parameters.len() + 8);
    buffer.resize(HEADER + SPEC, 0);
    put(&mut buffer, HEADER + 8, &table.sectors.to_ne_bytes());
    put(&mut buffer, HEADER + 24, table.target.as_bytes());
    buffer.extend_from_slice(table.parameters.as_bytes());
    buffer.push(0);
    buffer.resize(buffer.len().next_multiple_of(8), 0);
    buffer
}

fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) {
    for (place, byte) in buffer.iter_mut().skip(at).zip(bytes) {
        *place = *byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures() {
        let table = Table { sectors: 0x1122, target: "crypt", parameters: "a b", read_only: true };
        let buffer = load("name", &table);
        assert_eq!(buffer.len() % 8, 0);
        assert_eq!(buffer[NAME..NAME + 5], *b"name\0");
        assert_eq!(buffer[DATA_START..DATA_START + 4], 312_u32.to_ne_bytes());
        assert_eq!(buffer[FLAGS..FLAGS + 4], (SECURE | READ_ONLY).to_ne_bytes());
        assert_eq!(buffer[HEADER + 8..HEADER + 16], 0x1122_u64.to_ne_bytes());
        assert_eq!(buffer[HEADER + 24..HEADER + 30], *b"crypt\0");
        assert_eq!(buffer[HEADER + SPEC..HEADER + SPEC + 4], *b"a b\0");
    }
}
