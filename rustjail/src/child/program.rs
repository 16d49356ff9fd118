//! The working directory, the environment and the program itself.

use std::{
    convert::Infallible,
    ffi::CString,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag},
    sys::stat::fstat,
    unistd::{self, AccessFlags, execve, faccessat},
};

use super::{
    open_directory,
    step::At,
    tree::{Links, Tree},
};
use crate::{plan::Process, sync::StepError, sys::process::getcwd};

/// Where a program is looked for when the container's environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How much of `/etc/passwd`, a file of the image, is read.
const MAX_PASSWD: u64 = 1 << 20;

/// A program that was found, ready to be executed.
#[derive(Debug)]
pub(super) struct Program {
    path: CString,
    shown: PathBuf,
    args: Vec<CString>,
    env: Vec<CString>,
}

/// Goes to the working directory, and makes sure that the kernel agrees it is beneath the root: a descriptor
/// of the host as working directory is a way out (CVE-2024-21626).
pub(super) fn enter_directory(path: &Path, directory: BorrowedFd<'_>) -> Result<(), StepError> {
    unistd::fchdir(directory).at("enter the working directory", path)?;
    let found = getcwd().at("look up the working directory", path)?;
    if found.is_absolute() { Ok(()) } else { Err(Errno::EXDEV).at("stay beneath the root in", path) }
}

/// Finds the program as the user the process is by now, so that one that is missing or may not be executed
/// fails the creation and not the start.
pub(super) fn find(process: &Process) -> Result<Program, StepError> {
    let name = process.args.first().map(String::as_str).unwrap_or_default();
    let path = look_up(name, &process.env).at("find the program", name)?;
    let c_strings = |texts: &[String]| {
        texts.iter().map(|text| CString::new(text.as_str())).collect::<Result<Vec<_>, _>>()
    };
    let mut env = process.env.clone();
    if !env.iter().any(|entry| entry.starts_with("HOME=")) {
        env.push(format!("HOME={}", home_of(process.identity.uid)));
    }
    Ok(Program {
        path: CString::new(path.to_string_lossy().as_bytes()).at("name", &path)?,
        args: c_strings(&process.args).at("pass the arguments of", &path)?,
        env: c_strings(&env).at("pass the environment of", &path)?,
        shown: path,
    })
}

impl Program {
    /// Becomes it.
    pub(super) fn execute(&self) -> Result<Infallible, StepError> {
        execve(&self.path, &self.args, &self.env).at("execute", &self.shown)
    }
}

fn look_up(name: &str, env: &[String]) -> io::Result<PathBuf> {
    if name.contains('/') {
        return executable(Path::new(name)).map(|()| name.into());
    }
    let path = env.iter().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or(DEFAULT_PATH);
    let mut worst = Errno::ENOENT.into();
    for directory in path.split(':').filter(|_| !name.is_empty()) {
        // An empty entry has always meant the working directory.
        let candidate = Path::new(if directory.is_empty() { "." } else { directory }).join(name);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => worst = error,
            Err(_) => {}
        }
    }
    Err(worst)
}

fn executable(path: &Path) -> io::Result<()> {
    faccessat(AT_FDCWD, path, AccessFlags::X_OK, AtFlags::AT_EACCESS)?;
    // A directory may be entered, which is the same permission bit.
    if path.is_dir() { Err(Errno::EACCES.into()) } else { Ok(()) }
}

/// The home directory that the container's `/etc/passwd` gives `uid`; "/" when it does not.
fn home_of(uid: u32) -> String {
    let text = read_passwd().unwrap_or_default();
    home_in(&text, uid).unwrap_or("/").to_owned()
}

fn read_passwd() -> Option<String> {
    let root = open_directory("/").ok()?;
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let place = Tree::new(root.as_fd()).open("/etc/passwd", flags, Links::Follow).ok()?;
    // The image may have put anything there.
    if fstat(&place).ok()?.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let mut text = Vec::new();
    File::from(place).take(MAX_PASSWD).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn home_in(passwd: &str, uid: u32) -> Option<&str> {
    let uid = uid.to_string();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid))?;
    line.split(':').nth(5).filter(|home| home.starts_with('/') && !home.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_comes_from_the_sixth_field() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33::/var/www:/bin/false\nodd:x:7:7::relative:\nshort:x:8\n";
        assert_eq!(home_in(passwd, 0), Some("/root"));
        assert_eq!(home_in(passwd, 33), Some("/var/www"));
        assert_eq!(home_in(passwd, 7), None);
        assert_eq!(home_in(passwd, 8), None);
        assert_eq!(home_in(passwd, 3), None);
    }

    #[test]
    fn the_containers_path_is_searched_in_order() {
        let env = |path: &str| vec![format!("PATH={path}")];
        assert_eq!(look_up("sh", &env("/nowhere:/bin")).unwrap(), Path::new("/bin/sh"));
        assert_eq!(look_up("sh", &env("/nowhere")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(look_up("bin", &env("/usr")).unwrap_err().raw_os_error(), Some(libc::EACCES));
        assert_eq!(look_up("", &[]).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(look_up("sh", &[]).unwrap().file_name().unwrap(), "sh");
    }
}
