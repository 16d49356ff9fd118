//! Our own binary must not be writable through `/proc/PID/exe` of a process in a container.
//!
//! A container can have us executed once more: a script of the image whose interpreter is `/proc/self/exe`, say.
//! That process shows its binary to the container's root, who could write to it as soon as nobody runs it
//! (CVE-2019-5736). So what a container could see runs from a mount that is read-only, which no process of a container
//! can change: a detached one of the binary alone, which vanishes with the last process that uses it. An init that is
//! alone in its PID namespace changes to that itself, while its maker does other things. A process that others can see
//! from its birth on needs a maker that runs from there, which executes itself for that first of all. Where the binary is
//! on a read-only mount anyway, nothing needs to be done.
//!
//! Taking a detached mount apart waits for an RCU grace period, and closing its last descriptor does that. So the
//! command keeps it until it has nothing else to do; a new execution inherits it, by the number that its name (`argv[0]`, as
//! /proc/self/fd/N) tells.

use std::{
    env,
    ffi::{CString, OsString},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::MetadataExt,
        },
    },
};

use nix::{
    fcntl::{FcntlArg, OFlag, SealFlag, fcntl, open},
    sys::{
        stat::{Mode, fstat},
        statvfs::{FsFlags, fstatvfs},
    },
    unistd::geteuid,
};
use oci_spec::runtime::{LinuxNamespaceType, Spec};
use rustjail::sys::{
    binary, fds, memfd,
    mount::{Attributes, clone_tree, set_attributes},
    process::execute_again,
};

use crate::{arguments::Arguments, context::Context, error::Error, inherited::preserved_fds};

const OWN: &str = "/proc/self/exe";
const FDS: &str = "/proc/self/fd/";
/// Of the flag --preserve-fds.
const PASSING: &[u8] = b"preserve-fds";

/// What keeps our binary from a container.
#[derive(Debug, Default)]
pub struct Sealed {
    #[expect(dead_code, reason = "held until it is dropped")]
    mount: Option<OwnedFd>,
    /// The binary on that mount, if it is the new process that changes to it.
    pub binary: Option<OwnedFd>,
}

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

/// What the maker of a container of `spec` needs; that may be a new execution of it, so nothing is to be made before. The
/// first `preserved` descriptors from 3 on are not touched.
pub fn for_container(spec: &Spec, preserved: u32) -> Result<Sealed, Error> {
    if binary::is_changeable()
        && let Some(sealed) = left_to_init(spec)
    {
        return Ok(sealed);
    }
    ensure(preserved)
}

/// Returns once this process runs from a binary that nobody can write to; that may be in a new execution of it.
/// The first `preserved` descriptors from 3 on are not touched.
fn ensure(preserved: u32) -> Result<Sealed, Error> {
    seal(preserved).map_err(Error::io("protect the runtime's own binary", OWN))
}

/// Does the same before anything else is done, where it plainly has to be done and no descriptors are passed on: what comes
/// before is done again by the next execution. That is for an `exec`, and where there is nobody to make a mount. Everything
/// unclear is left to later, and so is an error.
pub fn ensure_early() {
    let names: &[&str] = if geteuid().is_root() { &["exec"] } else { &["exec", "run", "create"] };
    let makes_process = |word: &OsString| names.iter().any(|name| word == name);
    let passes_on = |word: &OsString| word.as_bytes().windows(PASSING.len()).any(|part| part == PASSING);
    let sealed = env::args().next().is_some_and(|name| name.starts_with(FDS));
    let plain =
        env::args_os().any(|word| makes_process(&word)) && !env::args_os().any(|word| passes_on(&word));
    if plain && !sealed && env::var_os("LISTEN_FDS").is_none() {
        drop(ensure(0));
    }
}

/// `None` where an init of `spec` could be seen before it has changed its binary, or could not change it, and where it need
/// not.
fn left_to_init(spec: &Spec) -> Option<Sealed> {
    let own = open(OWN, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let namespaces = spec.linux().as_ref()?.namespaces().as_deref()?;
    let of = |kind| namespaces.iter().find(move |namespace| namespace.typ() == kind);
    let is_alone = of(LinuxNamespaceType::Pid)?.path().is_none();
    // In a user namespace it is one of the others that the file's mode speaks of.
    let may_execute = match of(LinuxNamespaceType::User) {
        Some(user) => user.path().is_none() && fstat(&own).ok()?.st_mode & libc::S_IXOTH != 0,
        None => true,
    };
    if !is_alone || !may_execute || is_on_read_only(&own).ok()? {
        return None;
    }
    let mount = read_only_mount(&own).ok()?;
    let binary = File::open(format!("{FDS}{}", mount.as_raw_fd())).ok()?;
    Some(Sealed { mount: Some(mount), binary: Some(binary.into()) })
}

fn is_on_read_only(own: &OwnedFd) -> io::Result<bool> {
    Ok(fstatvfs(own)?.flags().contains(FsFlags::ST_RDONLY))
}

fn seal(preserved: u32) -> io::Result<Sealed> {
    let own = open(OWN, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    if is_on_read_only(&own)? {
        return Ok(Sealed { mount: held_mount(preserved)?, binary: None });
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
                return Ok(Sealed::default());
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
