//! Entropy from the host: what a VM that was cloned or restored needs before it makes a key.

use std::fs::File;

use rustjail::sys::random;

use super::{Error, Result, failed_to};

const DEVICE: &str = "/dev/random";

/// Credits `data` as fully random and has the kernel's generator reseed from its pool at once, so that two guests
/// restored from one snapshot part ways now and not at the next regular reseeding.
pub fn add(data: &[u8]) -> Result<()> {
    if data.is_empty() {
        return Err(Error::Invalid("missing entropy data".to_owned()));
    }
    let device = File::options().write(true).open(DEVICE);
    let device = device.map_err(failed_to(|| format!("open {DEVICE}")))?;
    random::add_entropy(&device, data)
        .map_err(failed_to(|| format!("credit {} bytes of entropy to {DEVICE}", data.len())))?;
    random::reseed(&device).map_err(failed_to(|| format!("reseed {DEVICE}")))
}
