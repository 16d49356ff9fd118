//! A cgroup directory by descriptor. Every file below is reached from it by `openat`, so an overmounted
//! or renamed path cannot redirect a write, and its path is kept for messages only.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, openat},
    sys::stat::{Mode, mkdirat},
    unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat, write},
};

use super::CgroupError;
use crate::sys::dirents;

/// The longest file read. `memory.stat` is about 4 KiB; `cgroup.procs` and `io.stat` grow with processes
/// and disks, and 4 MiB is half a million pids.
const MAX_FILE: u64 = 4 << 20;

const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// An open directory of a cgroup hierarchy.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

impl Dir {
    pub(super) fn open(path: &Path) -> Result<Self, CgroupError> {
        let fd = openat(AT_FDCWD, path, DIRECTORY, Mode::empty())
            .map_err(|errno| CgroupError::io("open", path, errno))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// The directory `relative` below this one; never through a symbolic link, which cgroup filesystems do
    /// not have.
    pub(super) fn child(&self, relative: impl AsRef<Path>) -> Result<Self, CgroupError> {
        let relative = relative.as_ref();
        let path = self.path.join(relative);
        let fd = openat(&self.fd, relative, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())
            .map_err(|errno| CgroupError::io("open", &path, errno))?;
        Ok(Self { fd, path })
    }

    /// The directory above, which the caller knows to be `path`.
    pub(super) fn parent(&self) -> Result<Self, CgroupError> {
        let path = self.path.parent().unwrap_or(&self.path).to_owned();
        let fd = openat(&self.fd, "..", DIRECTORY, Mode::empty())
            .map_err(|errno| CgroupError::io("open the parent of", &self.path, errno))?;
        Ok(Self { fd, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The same directory by a descriptor of its own.
    pub(super) fn try_clone(&self) -> Result<Self, CgroupError> {
        Ok(Self { fd: self.try_clone_fd()?, path: self.path.clone() })
    }

    /// A second descriptor of the same directory.
    pub(super) fn try_clone_fd(&self) -> Result<OwnedFd, CgroupError> {
        self.fd.try_clone().map_err(|source| CgroupError::io("duplicate", &self.path, source))
    }

    /// Makes the directory `relative`, below one that exists.
    pub(super) fn mkdir(&self, relative: &Path) -> nix::Result<()> {
        mkdirat(&self.fd, relative, Mode::from_bits_truncate(0o755))
    }

    /// Removes the directory `name`, which must have no groups below it; one that is gone is fine.
    pub(super) fn remove(&self, name: impl AsRef<Path>) -> Result<(), CgroupError> {
        match unlinkat(&self.fd, name.as_ref(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::EBUSY) => Err(CgroupError::Busy { path: self.path.join(name) }),
            Err(errno) => Err(CgroupError::io("remove", self.path.join(name), errno)),
        }
    }

    /// The names of the groups directly below.
    pub(super) fn subgroups(&self) -> Result<Vec<OsString>, CgroupError> {
        self.entries(libc::DT_DIR)
    }

    /// The names of the files in it.
    pub(super) fn files(&self) -> Result<Vec<OsString>, CgroupError> {
        self.entries(libc::DT_REG)
    }

    fn entries(&self, kind: u8) -> Result<Vec<OsString>, CgroupError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let open = openat(&self.fd, ".", flags, Mode::empty());
        let open = open.map_err(|errno| CgroupError::io("list", &self.path, errno))?;
        let mut names = Vec::new();
        dirents::read(open.as_fd(), |name, is| {
            if is == kind && name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        })
        .map_err(|source| CgroupError::io("list", &self.path, source))?;
        Ok(names)
    }

    pub(super) fn has(&self, file: &str) -> bool {
        faccessat(&self.fd, file, AccessFlags::F_OK, AtFlags::empty()).is_ok()
    }

    /// Opens the file `file` of this directory.
    pub(super) fn open_file(&self, file: impl AsRef<OsStr>, flags: OFlag) -> Result<OwnedFd, CgroupError> {
        let file = file.as_ref();
        openat(&self.fd, file, flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty()).map_err(|errno| {
            let path = self.path.join(file);
            if errno == Errno::ENOENT {
                CgroupError::NoFile { path }
            } else {
                CgroupError::io("open", path, errno)
            }
        })
    }

    pub(super) fn read(&self, file: &str) -> Result<String, CgroupError> {
        let mut bytes = Vec::with_capacity(4096);
        File::from(self.open_file(file, OFlag::O_RDONLY)?)
            .take(MAX_FILE)
            .read_to_end(&mut bytes)
            .map_err(|source| CgroupError::io("read", self.path.join(file), source))?;
        Ok(lossy(bytes))
    }

    /// Like [`Dir::read`], but nothing where the kernel has no such file, or has stopped offering it
    /// because the group is being removed or is threaded.
    pub(super) fn read_if_any(&self, file: &str) -> Result<Option<String>, CgroupError> {
        match self.read(file) {
            Ok(text) => Ok(Some(text)),
            Err(CgroupError::NoFile { .. }) => Ok(None),
            Err(error) if matches!(error.errno(), Some(libc::ENODEV | libc::EOPNOTSUPP)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes `value` by one `write`, which is how a cgroup file takes a command.
    pub(super) fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        self.write_to(&self.open_file(file, OFlag::O_WRONLY)?, file, value)
    }

    /// Writes one command after the other; without any the file is not opened.
    pub(super) fn write_each(
        &self,
        file: &str,
        values: impl IntoIterator<Item = String>,
    ) -> Result<(), CgroupError> {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let fd = self.open_file(file, OFlag::O_WRONLY)?;
        values.try_for_each(|value| self.write_to(&fd, file, &value))
    }

    fn write_to(&self, fd: &OwnedFd, file: &str, value: &str) -> Result<(), CgroupError> {
        let written = loop {
            match write(fd, value.as_bytes()) {
                Err(Errno::EINTR) => {}
                other => break other,
            }
        };
        match written {
            Ok(length) if length == value.len() => Ok(()),
            Ok(_) => {
                let short = io::Error::from(io::ErrorKind::WriteZero);
                Err(CgroupError::write(&self.path.join(file), value, short))
            }
            Err(errno) => Err(CgroupError::write(&self.path.join(file), value, errno)),
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The kernel writes ASCII, but a group's or a device's name may come from elsewhere.
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Whether `name` can be one component of a path.
pub(super) fn is_component(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !matches!(bytes, b"" | b"." | b"..") && !bytes.contains(&b'/') && !bytes.contains(&0)
}
