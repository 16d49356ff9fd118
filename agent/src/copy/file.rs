//! Writing a piece: everything that happens inside the target's directory.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, MetadataExt, PermissionsExt},
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, renameat},
    sys::stat::{FileStat, Mode, SFlag, fstatat, mkdirat},
    unistd::{UnlinkatFlags, fchownat, symlinkat, unlinkat},
};

use super::{Error, Kind, Piece, Result, tree};

/// What a partial copy's name ends in. One beginning with a dot is hidden from `ls` in the volume it lies in.
pub(super) const SUFFIX: &str = ".berth-part";

/// A target, by its directory.
struct Target<'a> {
    directory: OwnedFd,
    name: &'a OsStr,
    piece: &'a Piece,
}

pub(super) fn copy(root: &Path, place: &Path, piece: &Piece) -> Result<()> {
    let name = place.file_name().ok_or_else(|| piece.invalid("it names no file"))?;
    let parent = place.parent().unwrap_or(Path::new(""));
    let failed = |action: &str, source| failure(piece, action, source);
    let root = tree::root(root).map_err(|error| failed("open the shared tree", error))?;
    let mode = Mode::from_bits_truncate(piece.dir_mode & 0o777);
    let directory =
        tree::directories(root, parent, mode).map_err(|error| failed("open its directory", error))?;
    let target = Target { directory, name, piece };
    if !parent.as_os_str().is_empty() {
        let (uid, gid) = piece.owner()?;
        let chowned = fchownat(&target.directory, "", uid, gid, AtFlags::AT_EMPTY_PATH);
        chowned.map_err(|errno| failed("give its directory its owner", errno.into()))?;
    }
    match piece.kind()? {
        Kind::Directory => target.directory(),
        Kind::Symlink => target.symlink(),
        Kind::File => target.file(),
    }
}

fn failure(piece: &Piece, action: &str, source: io::Error) -> Error {
    Error::Io { path: piece.path.clone(), action: action.to_owned(), source }
}

impl Target<'_> {
    fn failed(&self, action: &'static str) -> impl FnOnce(Errno) -> Error {
        move |errno| failure(self.piece, action, errno.into())
    }

    /// What is there, itself if it is a link.
    fn present(&self, name: &OsStr) -> Result<Option<FileStat>> {
        match fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look what is there")(errno)),
        }
    }

    fn remove(&self, name: &OsStr) -> Result<()> {
        match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove what is there")(errno)),
        }
    }

    /// Kept with what is in it if it is there; a file or a link makes way.
    fn directory(&self) -> Result<()> {
        let is_directory = |stat: &FileStat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits();
        let present = self.present(self.name)?;
        if !present.as_ref().is_some_and(is_directory) {
            if present.is_some() {
                self.remove(self.name)?;
            }
            match mkdirat(&self.directory, self.name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(self.failed("make the directory")(errno)),
            }
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let made = openat(&self.directory, self.name, flags, Mode::empty())
            .map_err(self.failed("open the directory"))?;
        self.finish(&File::from(made))
    }

    /// Made beside the target and renamed over it, as a file is: whoever looks finds the old link or the new.
    fn symlink(&self) -> Result<()> {
        let part = self.part();
        let to = std::os::unix::ffi::OsStrExt::from_bytes(&self.piece.data[..]);
        let to: &OsStr = to;
        self.remove(&part)?;
        symlinkat(to, &self.directory, &*part).map_err(self.failed("make the link"))?;
        let (uid, gid) = self.piece.owner()?;
        let owned = fchownat(&self.directory, &*part, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW);
        let done = owned.map_err(self.failed("give the link its owner")).and_then(|()| self.rename(&part));
        done.inspect_err(|_| drop(self.remove(&part)))
    }

    fn file(&self) -> Result<()> {
        let Piece { size, offset, data, .. } = self.piece;
        let (size, offset) = (size.cast_unsigned(), offset.cast_unsigned());
        let part = self.part();
        let file = if offset == 0 { self.begin(&part)? } else { self.go_on(&part, offset)? };
        if let Err(error) = write(&file, data, offset) {
            if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) {
                // It cannot go on, and what it takes up is needed.
                self.remove(&part)?;
            }
            return Err(failure(self.piece, "write", error));
        }
        if offset + (data.len() as u64) < size {
            return Ok(());
        }
        self.finish(&file).and_then(|()| self.rename(&part)).inspect_err(|_| drop(self.remove(&part)))
    }

    fn begin(&self, part: &OsStr) -> Result<File> {
        self.remove(part)?;
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(&self.directory, part, flags, Mode::S_IRUSR | Mode::S_IWUSR);
        file.map(File::from).map_err(self.failed("make the file"))
    }

    /// Opens the partial copy, if it is still ours alone and long enough. A container that has the directory may
    /// have put something else there: not waited for (O_NONBLOCK), and not written to.
    fn go_on(&self, part: &OsStr, offset: u64) -> Result<File> {
        let out_of_order = |present| Error::OutOfOrder { path: self.piece.path.clone(), offset, present };
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = match openat(&self.directory, part, flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Err(out_of_order(0)),
            file => File::from(file.map_err(self.failed("open what is copied so far"))?),
        };
        let metadata =
            file.metadata().map_err(|error| failure(self.piece, "look at what is copied so far", error))?;
        if !metadata.is_file() || metadata.nlink() != 1 {
            return Err(Error::InTheWay {
                path: self.piece.path.clone(),
                found: "what is not a partial copy of ours",
            });
        }
        if offset > metadata.len() {
            return Err(out_of_order(metadata.len()));
        }
        Ok(file)
    }

    /// Owner before mode: a change of owner takes set-user-ID away.
    fn finish(&self, made: &File) -> Result<()> {
        let (uid, gid) = self.piece.owner()?;
        nix::unistd::fchown(made, uid, gid).map_err(self.failed("set the owner"))?;
        let permissions = Permissions::from_mode(self.piece.mode & 0o7777);
        made.set_permissions(permissions).map_err(|error| failure(self.piece, "set the mode", error))
    }

    fn rename(&self, part: &OsStr) -> Result<()> {
        match renameat(&self.directory, part, &self.directory, self.name) {
            Ok(()) => Ok(()),
            Err(Errno::EISDIR | Errno::ENOTEMPTY | Errno::EEXIST) => {
                Err(Error::InTheWay { path: self.piece.path.clone(), found: "a directory" })
            }
            Err(errno) => Err(self.failed("give it its name")(errno)),
        }
    }

    fn part(&self) -> OsString {
        let mut part = OsString::from(".");
        part.push(self.name);
        part.push(SUFFIX);
        part
    }
}

/// What was after `offset`, from an attempt that broke off or is done again, goes.
fn write(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    file.set_len(offset)?;
    file.write_all_at(data, offset)
}
