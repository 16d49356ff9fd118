//! Where storages may be put, and looking such places up.
//!
//! A path is looked up without following a single symbolic link, so nothing below a directory that others
//! write to can lead a mount elsewhere (CVE-2020-2024), and the guest's own directories are out of bounds
//! whatever a request or a policy says (GHSA-fmg6-v47x-52wr).

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use nix::{
    NixPath,
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

/// The guest's own, with all below.
const FORBIDDEN: [&str; 15] = [
    "/proc",
    "/sys",
    "/dev",
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/boot",
    "/init",
    "/root",
    "/run/berth",
    "/run/systemd",
];
/// Directories that hold others' things: not themselves, but what is in them.
const SHARED: [&str; 8] = ["/", "/run", "/tmp", "/var", "/var/tmp", "/mnt", "/home", "/opt"];

/// Says what is wrong with `path` as a mount point, as the end of a sentence.
pub(super) fn check(path: &Path, state_dir: &Path) -> Result<(), String> {
    if !path.is_absolute() {
        return Err("has a mount point that is no absolute path".to_owned());
    }
    let plain = |component| matches!(component, Component::RootDir | Component::Normal(_));
    let canonical: PathBuf = path.components().collect();
    if !path.components().all(plain) || canonical.as_os_str() != path.as_os_str() {
        return Err("has a mount point with \".\", \"..\", \"//\" or a \"/\" at the end".to_owned());
    }
    let own = FORBIDDEN.iter().map(Path::new).chain([state_dir]).find(|own| path.starts_with(own));
    let own = own.or_else(|| SHARED.iter().map(Path::new).find(|shared| path == *shared));
    match own.or_else(|| Some(state_dir).filter(|dir| dir.starts_with(path))) {
        Some(own) => Err(format!("would cover {}, which is the guest's own", own.display())),
        None => Ok(()),
    }
}

/// Opens the place `path` itself, without following any symbolic link.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    let how =
        OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(openat2(AT_FDCWD, path, how)?)
}

/// Opens it when there is something.
pub(super) fn find(path: &Path) -> io::Result<Option<OwnedFd>> {
    match open(path) {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A path to what `fd` has open, for system calls that take nothing else.
pub(super) fn by_descriptor(fd: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/thread-self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// The id of the mount that `fd` is on.
pub(super) fn mount_id(fd: &impl AsFd) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_fd().as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "procfs does not tell the mount's id"))
}

/// What is in `directory`.
pub(super) fn names(directory: &impl AsFd) -> io::Result<Vec<CString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::openat(directory, ".", flags, Mode::empty())?.iter() {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// Takes away `name` from the directory `from`, with all that is in it. No link is followed.
pub(super) fn remove<P: NixPath + ?Sized>(from: &OwnedFd, name: &P) -> io::Result<()> {
    match unlinkat(from, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR) => {
            let path = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let inner = openat(from, name, path, Mode::empty())?;
            names(&inner)?.iter().try_for_each(|name| remove(&inner, name.as_c_str()))?;
            Ok(unlinkat(from, name, UnlinkatFlags::RemoveDir)?)
        }
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether something is mounted exactly at `path`, and of what type and from what source.
pub(super) fn mounted(path: &Path) -> io::Result<Option<(String, String)>> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo")?;
    let last = table.lines().rev().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let place = unescape(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        (Path::new(&place) == path).then(|| Some((after.next()?.to_owned(), unescape(after.next()?))))?
    });
    Ok(last)
}

/// Spaces and the like are octal in mountinfo.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let code = octal.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_guests_own_places_are_out_of_bounds() {
        let state = Path::new("/var/lib/berth");
        for path in [
            "",
            "a",
            "/",
            "/run",
            "/tmp",
            "/proc",
            "/proc/1/root",
            "/sys/fs/cgroup",
            "/dev/vda",
            "/etc",
            "/usr/bin/x",
            "/run/berth",
            "/run/berth/journal",
            "/run/a/../../etc",
            "/run/./a",
            "/run//a",
            "/run/a/",
            "/var/lib/berth/x",
            "/var/lib",
        ] {
            assert!(check(Path::new(path), state).is_err(), "{path:?}");
        }
        for path in [
            "/run/kata-containers/shared/containers/v1",
            "/run/berthing",
            "/tmp/x",
            "/data",
            "/var/lib/other",
        ] {
            assert_eq!(check(Path::new(path), state), Ok(()), "{path:?}");
        }
    }

    #[test]
    fn no_link_is_followed() {
        let dir = std::env::temp_dir().join(format!("berth-place-{}", std::process::id()));
        fs::create_dir_all(dir.join("real/deep")).unwrap();
        symlink("real", dir.join("link")).unwrap();
        assert!(find(&dir.join("real/deep")).unwrap().is_some());
        assert!(find(&dir.join("real/none")).unwrap().is_none());
        assert_eq!(find(&dir.join("link/deep")).unwrap_err().raw_os_error(), Some(Errno::ELOOP as i32));
        assert!(find(&dir.join("link")).is_err());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn mountinfo_is_read() {
        assert_eq!(mounted(Path::new("/proc")).unwrap().unwrap().0, "proc");
        assert_eq!(mounted(Path::new("/proc/self")).unwrap(), None);
        assert_eq!(unescape(r"/a\040b\134c\zz"), r"/a b\c\zz");
    }
}
