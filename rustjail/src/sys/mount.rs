//! The mount API of Linux 5.2 and 5.12, which works on descriptors: a mount is made, given its attributes
//! and only then put in place, and no step looks a path up twice.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    ptr,
};

use std::os::unix::ffi::OsStrExt;

const FSOPEN_CLOEXEC: u32 = 1;
const FSMOUNT_CLOEXEC: u32 = 1;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 0x04;
const MOVE_MOUNT_T_EMPTY_PATH: u32 = 0x40;

/// The bits of an atime mode, which are set and cleared as one field.
pub const ATTR_ATIME: u64 = libc::MOUNT_ATTR__ATIME;

/// What mount_setattr(2) changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Attributes {
    /// MOUNT_ATTR_* to set.
    pub set: u64,
    /// MOUNT_ATTR_* to clear.
    pub clear: u64,
    /// MS_SHARED, MS_SLAVE, MS_PRIVATE, MS_UNBINDABLE, or 0 for no change.
    pub propagation: u64,
}

/// A file system about to be configured and mounted.
#[derive(Debug)]
pub struct FileSystem(OwnedFd);

impl FileSystem {
    /// Begins with nothing but the type.
    pub fn open(kind: &str) -> io::Result<Self> {
        let kind = super::c_string(kind.as_bytes())?;
        // SAFETY: `kind` is a C string that outlives the call.
        super::owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) }).map(Self)
    }

    /// Gives the option `key` the value `value`.
    pub fn set(&self, key: &str, value: &str) -> io::Result<()> {
        let value = super::c_string(value.as_bytes())?;
        self.configure(FSCONFIG_SET_STRING, Some(key), value.as_ptr())
    }

    /// Sets the option `key`, which takes no value.
    pub fn flag(&self, key: &str) -> io::Result<()> {
        self.configure(FSCONFIG_SET_FLAG, Some(key), ptr::null())
    }

    /// Makes the file system and a detached mount of it with the MOUNT_ATTR_* `attributes`.
    pub fn mount(self, attributes: u64) -> io::Result<OwnedFd> {
        self.configure(FSCONFIG_CMD_CREATE, None, ptr::null())?;
        // SAFETY: takes integers only.
        super::owned(unsafe {
            libc::syscall(libc::SYS_fsmount, self.0.as_raw_fd(), FSMOUNT_CLOEXEC, attributes as u32)
        })
    }

    fn configure(&self, command: u32, key: Option<&str>, value: *const libc::c_char) -> io::Result<()> {
        let key = key.map(|key| super::c_string(key.as_bytes())).transpose()?;
        let key = key.as_ref().map_or(ptr::null(), |key| key.as_ptr());
        let aux: libc::c_int = 0;
        // SAFETY: `key` and `value` are null or C strings that outlive the call, as the command wants them.
        super::check(unsafe {
            libc::syscall(libc::SYS_fsconfig, self.0.as_raw_fd(), command, key, value, aux)
        })?;
        Ok(())
    }
}

/// A detached copy of the mount at `path` (of all below it when `recursive`).
pub fn clone_tree_at(path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let path = super::c_string(path.as_os_str().as_bytes())?;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | recursion(recursive);
    // SAFETY: `path` is a C string that outlives the call.
    super::owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// A detached copy of the mount that `fd` is in, rooted at `fd`.
pub fn clone_tree(fd: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let flags =
        libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as u32 | recursion(recursive);
    // SAFETY: the path is an empty C string.
    super::owned(unsafe { libc::syscall(libc::SYS_open_tree, fd.as_raw_fd(), c"".as_ptr(), flags) })
}

/// Puts the detached mount `mount` onto `target`.
pub fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    let empty = c"".as_ptr();
    // SAFETY: both paths are empty C strings.
    super::check(unsafe {
        libc::syscall(libc::SYS_move_mount, mount.as_raw_fd(), empty, target.as_raw_fd(), empty, flags)
    })?;
    Ok(())
}

/// Changes the mount that `mount` is the root of (and all below it when `recursive`).
pub fn set_attributes(mount: BorrowedFd<'_>, attributes: Attributes, recursive: bool) -> io::Result<()> {
    // SAFETY: mount_attr is plain integers, for which all zeroes is a value.
    let mut attr: libc::mount_attr = unsafe { std::mem::zeroed() };
    attr.attr_set = attributes.set;
    attr.attr_clr = attributes.clear;
    attr.propagation = attributes.propagation;
    mount_setattr(mount, &attr, recursive)
}

/// Has the ids of the files of a detached mount (and of all below it when `recursive`) shown as the user
/// namespace `map` maps them. Takes privileges over the file system, and a mount is mapped once at most.
pub fn map_ids(mount: BorrowedFd<'_>, map: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    // SAFETY: mount_attr is plain integers, for which all zeroes is a value.
    let mut attr: libc::mount_attr = unsafe { std::mem::zeroed() };
    attr.attr_set = libc::MOUNT_ATTR_IDMAP;
    attr.userns_fd = map.as_raw_fd() as u64;
    mount_setattr(mount, &attr, recursive)
}

/// A descriptor in `attr` has to be open.
fn mount_setattr(mount: BorrowedFd<'_>, attr: &libc::mount_attr, recursive: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH as u32 | recursion(recursive);
    // SAFETY: the path is an empty C string and `attr` is as long as said.
    super::check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(attr),
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

fn recursion(recursive: bool) -> u32 {
    if recursive { libc::AT_RECURSIVE as u32 } else { 0 }
}
