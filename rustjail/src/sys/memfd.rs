//! Memory files that nobody can change any more.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
};

/// Every seal there is: neither the content, nor the size, nor the seals can be changed.
const SEALS: libc::c_int = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// A close-on-exec memory file that holds what `source` reads as, sealed, at offset 0. `name` is for people
/// who look at /proc; at most 249 bytes, without NUL.
pub fn sealed_copy(name: &str, source: &mut impl Read) -> io::Result<OwnedFd> {
    let mut file = create(name, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?;
    io::copy(source, &mut file)?;
    seal(file)
}

/// Like [`sealed_copy`], of bytes in memory.
pub fn sealed(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = create(name, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?;
    file.write_all(bytes)?;
    seal(file)
}

fn create(name: &str, flags: libc::c_uint) -> io::Result<File> {
    let name = super::c_string(name.as_bytes())?;
    // SAFETY: `name` is a C string that outlives the call.
    let fd = super::owned(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) })?;
    Ok(File::from(fd))
}

fn seal(mut file: File) -> io::Result<OwnedFd> {
    io::Seek::rewind(&mut file)?;
    // SAFETY: takes integers only.
    super::check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) }.into())?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_reads_back_and_cannot_be_written() {
        let mut file = File::from(sealed_copy("berth-test", &mut &b"hold"[..]).unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hold");
        assert_eq!(file.write(b"x").unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
