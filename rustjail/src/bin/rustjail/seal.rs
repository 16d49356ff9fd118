//! Our own binary must not be writable through `/proc/PID/exe` of a process in a container.
//!
//! A container can have us executed once more: a script of the image whose interpreter is `/proc/self/exe`, say.
//! That process shows its binary to the container's root, who could write to it as soon as nobody runs it
//! (CVE-2019-5736). So commands that make processes run from a mount that is read-only, which no process of a
//! container can change: a detached one of the binary alone, which vanishes with the last process that uses it.
//! Where the binary is on a read-only mount anyway, nothing needs to be done.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, FcntlArg, OFlag, SealFlag, fcntl, open},
    sys::{
        stat::Mode,
        statvfs::{FsFlags, fstatvfs},
    },
    unistd::execveat,
};
use rustjail::sys::{
    memfd,
    mount::{Attributes, clone_tree, set_attributes},
};

use crate::error::Error;

const OWN: &str = "/proc/self/exe";

/// Returns once this process runs from a binary that nobody can write to; that may be in a new execution of it.
pub fn ensure() -> Result<(), Error> {
    seal().map_err(Error::io("protect the runtime's own binary", OWN))
}

fn seal() -> io::Result<()> {
    let own = open(OWN, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    if fstatvfs(&own)?.flags().contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    match read_only_mount(&own) {
        Ok(mount) => execute(&mount),
        // Mounting takes CAP_SYS_ADMIN. A copy in memory takes nothing but time.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let mut own = File::open(OWN)?;
            if is_sealed(&own) { Ok(()) } else { execute(&memfd::sealed_copy("rustjail", &mut own)?) }
        }
        Err(error) => Err(error),
    }
}

fn read_only_mount(own: &OwnedFd) -> io::Result<OwnedFd> {
    let mount = clone_tree(own.as_fd(), false)?;
    let read_only = Attributes { set: libc::MOUNT_ATTR_RDONLY, ..Attributes::default() };
    set_attributes(mount.as_fd(), read_only, false)?;
    Ok(mount)
}

fn is_sealed(file: &File) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_WRITE))
}

fn execute(binary: &OwnedFd) -> io::Result<()> {
    let c_string = |text: std::ffi::OsString| CString::new(text.into_vec()).map_err(|_| Errno::EINVAL);
    let args: Vec<CString> = std::env::args_os().map(c_string).collect::<Result<_, _>>()?;
    let env: Vec<CString> = std::env::vars_os()
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            c_string(name)
        })
        .collect::<Result<_, _>>()?;
    match execveat(binary, c"", &args, &env, AtFlags::AT_EMPTY_PATH) {
        Ok(never) => match never {},
        Err(errno) => Err(errno.into()),
    }
}
