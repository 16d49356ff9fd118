//! Disks of which the host sees nothing but ciphertext (dm-crypt).
//!
//! The key is drawn here, given to the kernel and to nobody else: what was written under it cannot be read once
//! the mapping is gone, by this guest either. Therefore nothing on the disk helps to find it again, and the
//! whole disk is the volume's. A disk has one such mapping at most.

use std::{
    fmt::Write,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use super::{Place, Target, map};
use crate::storage::{
    error::{Result, failed_to},
    steps::Steps,
};

/// AES-256 in XTS mode has two keys.
const KEY: usize = 64;

/// Puts encryption with a key of its own over `disk`; answers the node to use instead.
pub(in crate::storage) fn encrypt(disk: &Path, steps: &mut Steps) -> Result<PathBuf> {
    let place = Place::of(disk)?;
    let mut key = [0; KEY];
    let drawn = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut key));
    drawn.map_err(failed_to(|| format!("draw a key for {}", disk.display())))?;
    // Long enough from the start: what is outgrown would keep a copy of the key.
    let mut parameters = String::with_capacity(256);
    parameters.push_str("aes-xts-plain64 ");
    for byte in &key {
        let _never_fails = write!(parameters, "{byte:02x}");
    }
    key.fill(0);
    let _never_fails = write!(parameters, " 0 {} 0", place.number);
    let name = format!("berth-crypt-{}", place.label());
    map(disk, &name, Target { kind: "crypt", sectors: place.sectors, parameters, read_only: false }, steps)
}
