//! Sealed files in a volume: what to read of it, and where the plaintext goes.
//!
//! A volume of Kubernetes' is a directory of symbolic links into it. Hosts may share that directory or write to it, so
//! a link is followed only within it (the host must not have the agent read the guest's own files), and what was
//! unsealed is put elsewhere.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    },
    path::{Path, PathBuf},
};

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use rustjail::lookup::open_within;

use super::SEALED;

/// More than any volume of secrets has.
const ENTRIES: usize = 1024;
/// The most that one sealed secret can be; as much as all of a Kubernetes secret.
const MOST: u64 = 1 << 20;

/// A file that holds a sealed secret.
#[derive(Debug)]
pub struct SealedFile {
    /// Its name in the volume; empty where the volume is a file itself.
    pub name: PathBuf,
    /// What it holds.
    pub sealed: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
}

/// The sealed files of the volume `source`: of a directory those at its top.
pub fn sealed_files(source: &Path) -> io::Result<Vec<SealedFile>> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let volume = openat2(AT_FDCWD, source, OpenHow::new().flags(flags))?;
    let volume = File::from(volume);
    if !volume.metadata()?.is_dir() {
        return Ok(read(volume, PathBuf::new())?.into_iter().collect());
    }
    let directory = OwnedFd::from(volume);
    let mut found = Vec::new();
    for (number, entry) in fs::read_dir(source)?.enumerate() {
        if number == ENTRIES {
            return Err(io::Error::other(format!("more than {ENTRIES} entries")));
        }
        let name = PathBuf::from(entry?.file_name());
        let within = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        match open_within(&directory, &name, flags, within) {
            Ok(file) => found.extend(read(file.into(), name)?),
            // A link to nowhere is nobody's secret, and a socket cannot be opened.
            Err(nix::Error::ENOENT | nix::Error::ENXIO) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// `None` if it is no file, or not sealed.
fn read(file: File, name: PathBuf) -> io::Result<Option<SealedFile>> {
    let about = file.metadata()?;
    let mut sealed = Vec::new();
    if !about.is_file() {
        return Ok(None);
    }
    (&file).take(SEALED.len() as u64).read_to_end(&mut sealed)?;
    if sealed != SEALED.as_bytes() {
        return Ok(None);
    }
    if (&file).take(MOST).read_to_end(&mut sealed)? as u64 == MOST {
        return Err(io::Error::other(format!("a sealed secret of more than {MOST} bytes")));
    }
    let (mode, owner) = (about.permissions().mode() & 0o777, (about.uid(), about.gid()));
    Ok(Some(SealedFile { name, sealed, mode, owner }))
}

impl SealedFile {
    /// Writes what was in it to `path`, for the same to read as could read it sealed.
    pub fn keep(&self, plaintext: &[u8], path: &Path) -> io::Result<()> {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(plaintext)?;
        fchown(&file, Some(self.owner.0), Some(self.owner.1))?;
        file.set_permissions(fs::Permissions::from_mode(self.mode))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn sealed_files_are_found_behind_links_but_never_outside() {
        let root = std::env::temp_dir().join(format!("berth-volume-{}", std::process::id()));
        let volume = root.join("volume");
        fs::create_dir_all(volume.join("..data/deeper")).unwrap();
        fs::write(root.join("outside"), "sealed.outside").unwrap();
        fs::write(volume.join("..data/token"), "sealed.token\n").unwrap();
        fs::write(volume.join("plain"), "sealed").unwrap();
        fs::set_permissions(volume.join("..data/token"), fs::Permissions::from_mode(0o440)).unwrap();
        for (name, target) in [
            ("token", "..data/token"),
            ("escape", "../outside"),
            ("absolute", root.join("outside").to_str().unwrap()),
            ("nowhere", "..data/none"),
            ("directory", "..data/deeper"),
        ] {
            symlink(target, volume.join(name)).unwrap();
        }
        let found = sealed_files(&volume).unwrap();
        let single = sealed_files(&volume.join("..data/token")).unwrap();
        let names: Vec<_> = found.iter().map(|file| file.name.clone()).collect();
        let kept = root.join("kept/0");
        found[0].keep(b"open", &kept).unwrap();
        let (text, mode) = (fs::read(&kept).unwrap(), fs::metadata(&kept).unwrap().permissions().mode());
        fs::write(volume.join("huge"), [b"sealed.", &vec![b'x'; 1 << 20][..]].concat()).unwrap();
        let huge = sealed_files(&volume);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(names, [Path::new("token")]);
        assert_eq!(
            (found[0].sealed.as_slice(), single[0].name.as_path()),
            (&b"sealed.token\n"[..], Path::new(""))
        );
        assert_eq!((text.as_slice(), mode & 0o777), (&b"open"[..], 0o440));
        assert!(huge.is_err());
    }
}
