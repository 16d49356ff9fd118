//! Our own binary must not be writable through `/proc/PID/exe` of a process in a container.
//!
//! A container can have us executed once more: a script of the image whose interpreter is `/proc/self/exe`, say.
//! That process shows its binary to the container's root, who could write to it as soon as nobody runs it
//! (CVE-2019-5736). So commands that make processes run from a mount that is read-only, which no process of a
//! container can change: a detached one of the binary alone, which vanishes with the last process that uses it.
//! Where the binary is on a read-only mount anyway, nothing needs to be done.
//!
//! Taking a detached mount apart waits for an RCU grace period, and closing its last descriptor does that. So the
//! new execution inherits the descriptor, by the number that its name (`argv[0]`, as /proc/self/fd/N) tells, and
//! closes it when it has nothing else to do.

use std::{
    env,
    ffi::{CString, OsString},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::MetadataExt,
        },
    },
};

use nix::{
    fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open},
    sys::{
        stat::Mode,
        statvfs::{FsFlags, fstatvfs},
    },
};
use rustjail::sys::{
    fds, memfd,
    mount::{Attributes, clone_tree, set_attributes},
    process::execute_again,
};

use crate::{arguments::Arguments, context::Context, error::Error, inherited::preserved_fds};

const OWN: &str = "/proc/self/exe";
const FDS: &str = "/proc/self/fd/";
/// Of the flag --preserve-fds.
const PASSING: &[u8] = b"preserve-fds";

/// What the binary that nobody can write to is on, if that is a mount of our own.
#[derive(Debug, Default)]
pub struct Sealed(#[expect(dead_code, reason = "held until it is dropped")] Option<OwnedFd>);

/// What a command does once it is protected: how many descriptors the container gets is told.
pub type Then = fn(&Context, &Arguments, u32, Sealed) -> Result<u8, Error>;

/// Goes on with `then` where this process's binary is out of the container's reach, which may be in a new execution: so
/// this comes first of all.
///
/// `then` is called by its address and is no part of this, because the first execution would touch four pages of stack
/// for it, which are the second's to use.
pub fn protected(context: &Context, arguments: &Arguments, then: Then) -> Result<u8, Error> {
    let preserved = preserved_fds(arguments)?;
    let sealed = ensure(preserved)?;
    then(context, arguments, preserved, sealed)
}

/// Returns once this process runs from a binary that nobody can write to; that may be in a new execution of it.
/// The first `preserved` descriptors from 3 on are not touched.
fn ensure(preserved: u32) -> Result<Sealed, Error> {
    seal(preserved).map_err(Error::io("protect the runtime's own binary", OWN))
}

/// Does the same before anything else is done, where the command line plainly is one that makes a process and passes no
/// descriptors on: what comes before is done again by the next execution. Everything unclear is left to [`ensure`], and
/// so is an error.
pub fn ensure_early() {
    let makes_process = |word: &OsString| word == "run" || word == "create" || word == "exec";
    let passes_on = |word: &OsString| word.as_bytes().windows(PASSING.len()).any(|part| part == PASSING);
    let sealed = env::args().next().is_some_and(|name| name.starts_with(FDS));
    let plain =
        env::args_os().any(|word| makes_process(&word)) && !env::args_os().any(|word| passes_on(&word));
    if plain && !sealed && env::var_os("LISTEN_FDS").is_none() {
        drop(ensure(0));
    }
}

fn seal(preserved: u32) -> io::Result<Sealed> {
    let own = open(OWN, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    if fstatvfs(&own)?.flags().contains(FsFlags::ST_RDONLY) {
        return held_mount(preserved).map(Sealed);
    }
    match read_only_mount(&own) {
        Ok(mount) => {
            // This copy of the descriptor outlives execve.
            let first = i32::try_from(preserved).unwrap_or(i32::MAX).saturating_add(3);
            let copy = fcntl(&mount, FcntlArg::F_DUPFD(first))?;
            execute(&mount, Some(format!("{FDS}{copy}").into()))
        }
        // Mounting takes CAP_SYS_ADMIN. A copy in memory takes nothing but time.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let mut own = File::open(OWN)?;
            if is_sealed(&own) {
                return Ok(Sealed(None));
            }
            execute(&memfd::sealed_copy("rustjail", &mut own)?, None)
        }
        Err(error) => Err(error),
    }
}

/// The descriptor that a former execution left, if this process is a later one: our name is a descriptor of ours
/// that is our binary.
fn held_mount(preserved: u32) -> io::Result<Option<OwnedFd>> {
    let Some(name) = env::args().next() else { return Ok(None) };
    let number = name.strip_prefix(FDS).and_then(|number| number.parse::<i32>().ok());
    let Some(number) = number.filter(|number| i64::from(*number) >= i64::from(preserved) + 3) else {
        return Ok(None);
    };
    let identity = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match identity(&name) {
        Ok(found) if found == identity(OWN)? => fds::inherited(number),
        _ => Ok(None),
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

fn execute(binary: &OwnedFd, name: Option<OsString>) -> io::Result<Sealed> {
    let named = name.is_some();
    let arguments: Vec<CString> = name
        .into_iter()
        .chain(env::args_os().skip(usize::from(named)))
        .map(|text| CString::new(text.into_vec()))
        .collect::<Result<_, _>>()?;
    match execute_again(binary.as_fd(), &arguments)? {}
}
