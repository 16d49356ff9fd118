//! Swap areas.

use std::{io, path::Path};

/// Begins to swap to `device`, which mkswap has prepared.
pub fn swapon(device: &Path) -> io::Result<()> {
    let device = super::c_string(device.as_os_str().as_encoded_bytes())?;
    // SAFETY: `device` is a C string that outlives the call.
    super::check(unsafe { libc::swapon(device.as_ptr(), 0) }.into())?;
    Ok(())
}
