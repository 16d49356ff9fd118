//! Putting one layer into a tree.
//!
//! What an entry says is done exactly or the layer is refused: kind, owner, mode, time and those attributes that
//! concern a container (`user.*`, capabilities, ACLs; other namespaces belong to the guest's kernel). A directory
//! keeps its own time when something is made in it, so nothing has to be remembered until the end.

use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::{
        stat::{
            FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmod, fchmodat, futimens, makedev, mkdirat,
            mknodat, utimensat,
        },
        time::TimeSpec,
    },
    unistd::{Gid, Uid, fchown, fchownat, linkat, symlinkat},
};
use rustjail::sys::xattr;

use super::{
    ImageError, Result,
    blob::Digest,
    tar::{Archive, Entry, Kind, TarError},
    tree::{self, Tree},
};

/// Of what was in the layers below.
const WHITEOUT: &[u8] = b".wh.";
/// Of all in the directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// A union file system's own notes, which only it understands.
const NOTES: &[u8] = b".wh..wh.";
const ATTRIBUTES: [&str; 3] = ["user.", "security.capability", "system.posix_acl_"];
/// Attributes of the overlay itself, were it mounted for an unprivileged user.
const OVERLAYS_OWN: &str = "user.overlay.";

/// Why one entry is not there.
enum Refusal {
    Problem(&'static str),
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Io(error.into())
    }
}

/// Puts all of `archive`, which is the layer `layer`, into `tree`.
pub(super) fn unpack(archive: &mut Archive<impl Read>, tree: &Tree, layer: Digest) -> Result<()> {
    let broken = |source| ImageError::Archive { layer: layer.to_string(), source };
    while let Some(entry) = archive.next_entry().map_err(broken)? {
        let path = || entry.path.clone().into();
        apply(tree, &entry, &mut archive.content()).map_err(|refusal| match refusal {
            Refusal::Problem(problem) => {
                ImageError::Entry { layer: layer.to_string(), path: path(), problem }
            }
            Refusal::Io(error) => match Errno::from_raw(error.raw_os_error().unwrap_or_default()) {
                Errno::ENAMETOOLONG => {
                    let problem = "is deeper than 256 directories, or has too long a name";
                    ImageError::Entry { layer: layer.to_string(), path: path(), problem }
                }
                _ if error.raw_os_error().is_none() => broken(TarError::Io(error)),
                _ => {
                    let action = format!("make {:?} of the layer {layer}", entry.path);
                    ImageError::Io { action, source: error }
                }
            },
        })?;
    }
    Ok(())
}

fn apply(tree: &Tree, entry: &Entry, content: &mut impl Read) -> std::result::Result<(), Refusal> {
    let out = || Refusal::Problem("leads out of the image");
    let (parent, name) = tree::split(Path::new(&entry.path)).ok_or_else(out)?;
    if name.as_bytes().starts_with(WHITEOUT) {
        return white_out(tree, parent, name);
    }
    let directory = tree.directory(parent)?;
    if name.is_empty() {
        return match entry.kind {
            Kind::Directory => dress(&directory, entry),
            _ => Err(Refusal::Problem("would be the root directory and is none")),
        };
    }
    tree::keeping_time(&directory, || {
        let present = tree::look(&directory, Path::new(name))?;
        let stays = entry.kind == Kind::Directory && present.as_ref().is_some_and(tree::is_directory);
        if present.is_some() && !stays {
            tree.remove(&directory, name)?;
        }
        match entry.kind {
            Kind::Directory => {
                if !stays {
                    mkdirat(&directory, name, Mode::from_bits_retain(0o700))?;
                }
                dress(&tree::enter(&directory, Path::new(name))?, entry)
            }
            Kind::File => make_file(&directory, name, entry, content),
            Kind::HardLink => {
                let (parent, target) = tree::split(Path::new(&entry.target)).ok_or_else(out)?;
                let from = tree.find(parent)?.ok_or(Errno::ENOENT)?;
                if target.is_empty() {
                    return Err(Refusal::Problem("is a hard link to a directory"));
                }
                Ok(linkat(&from, target, &directory, name, AtFlags::empty())?)
            }
            Kind::SymbolicLink => {
                symlinkat(entry.target.as_os_str(), &directory, name)?;
                dress_at(&directory, name, entry)
            }
            Kind::Character | Kind::Block | Kind::Fifo => make_node(&directory, name, entry),
        }
    })
}

/// Does what a whiteout says. What is not there needs no hiding, and neither does what is in it.
fn white_out(tree: &Tree, parent: &Path, name: &OsStr) -> std::result::Result<(), Refusal> {
    let name = name.as_bytes();
    let hidden = name.get(WHITEOUT.len()..).unwrap_or_default();
    if matches!(hidden, b"" | b"." | b"..") {
        return Err(Refusal::Problem("is a whiteout of no file"));
    }
    let Some(directory) = tree.find(parent)? else { return Ok(()) };
    if name == OPAQUE {
        Ok(tree::keeping_time(&directory, || tree.hide_all(&directory))?)
    } else if name.starts_with(NOTES) {
        Ok(())
    } else {
        Ok(tree::keeping_time(&directory, || tree.hide(&directory, OsStr::from_bytes(hidden)))?)
    }
}

fn make_file(
    directory: &OwnedFd,
    name: &OsStr,
    entry: &Entry,
    content: &mut impl Read,
) -> std::result::Result<(), Refusal> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(directory, name, flags, Mode::from_bits_retain(0o600))?);
    io::copy(content, &mut file)?;
    dress(&file.into(), entry)
}

fn make_node(directory: &OwnedFd, name: &OsStr, entry: &Entry) -> std::result::Result<(), Refusal> {
    let kind = match entry.kind {
        Kind::Character => SFlag::S_IFCHR,
        Kind::Block => SFlag::S_IFBLK,
        _ => SFlag::S_IFIFO,
    };
    let (major, minor) = entry.device;
    if kind == SFlag::S_IFCHR && (major, minor) == (0, 0) {
        return Err(Refusal::Problem("is the kernel's own whiteout, which no layer may have"));
    }
    mknodat(directory, name, kind, Mode::from_bits_retain(0o600), makedev(major, minor))?;
    dress_at(directory, name, entry)
}

/// Owner, mode, attributes and time. In this order: a new owner costs mode bits and capabilities.
fn dress(file: &OwnedFd, entry: &Entry) -> std::result::Result<(), Refusal> {
    fchown(file, Some(Uid::from_raw(entry.uid)), Some(Gid::from_raw(entry.gid)))?;
    fchmod(file, Mode::from_bits_retain(entry.mode))?;
    for (name, value) in &entry.xattrs {
        let wanted = ATTRIBUTES.iter().any(|prefix| name.starts_with(prefix));
        if wanted && !name.starts_with(OVERLAYS_OWN) {
            let name = CString::new(name.as_str()).map_err(io::Error::other)?;
            match xattr::set(file.as_fd(), &name, value) {
                // A file system without attributes of this kind is what the sandbox was given.
                Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {}
                outcome => outcome?,
            }
        }
    }
    let time = time(entry);
    Ok(futimens(file, &time, &time)?)
}

/// The same of what cannot be opened, or would be something else then.
fn dress_at(directory: &OwnedFd, name: &OsStr, entry: &Entry) -> std::result::Result<(), Refusal> {
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    fchownat(directory, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if entry.kind != Kind::SymbolicLink {
        // What was made a moment ago, and is no link.
        let mode = Mode::from_bits_retain(entry.mode);
        fchmodat(directory, name, mode, FchmodatFlags::FollowSymlink)?;
    }
    let time = time(entry);
    Ok(utimensat(directory, name, &time, &time, UtimensatFlags::NoFollowSymlink)?)
}

fn time(entry: &Entry) -> TimeSpec {
    TimeSpec::new(entry.modified.0, entry.modified.1)
}
