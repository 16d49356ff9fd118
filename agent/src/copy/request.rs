//! What one CopyFile call asks for.

use std::path::{Component, Path, PathBuf};

use nix::{
    sys::stat::SFlag,
    unistd::{Gid, Uid},
};

use super::{Error, Result, file::SUFFIX};

/// What is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link whose target is the data.
    Symlink,
}

/// One call.
#[derive(Debug, Clone, Default)]
pub struct Piece {
    /// The target.
    pub path: String,
    /// Bytes of the whole file.
    pub size: i64,
    /// st_mode: type and permissions.
    pub mode: u32,
    /// Permissions of the directories that have to be made.
    pub dir_mode: u32,
    /// Owner; -1 leaves it.
    pub uid: i32,
    /// Group; -1 leaves it.
    pub gid: i32,
    /// Where the data goes.
    pub offset: i64,
    /// At most a frame of it.
    pub data: Vec<u8>,
}

impl Piece {
    pub(super) fn invalid(&self, problem: impl Into<String>) -> Error {
        Error::Invalid { path: self.path.clone(), problem: problem.into() }
    }

    /// The target below `root`, and everything that can be said against the request without a look at the tree.
    pub(super) fn place(&self, root: &Path) -> Result<PathBuf> {
        let outside = || self.invalid(format!("it is not below {}", root.display()));
        if self.path.contains('\0') {
            return Err(self.invalid("it has a NUL in it"));
        }
        // By bytes first: `strip_prefix` alone would let `root/./x` pass for `root/x`, and so it should.
        let place = Path::new(&self.path).strip_prefix(root).map_err(|_| outside())?;
        if place.components().any(|component| !matches!(component, Component::Normal(_))) {
            return Err(self.invalid("it has a .. in it"));
        }
        let name = place.file_name().ok_or_else(outside)?.to_string_lossy();
        if name.ends_with(SUFFIX) {
            return Err(self.invalid(format!("names that end in {SUFFIX} are those of partial copies")));
        }
        let kind = self.kind()?;
        self.owner()?;
        let (Ok(size), Ok(offset)) = (u64::try_from(self.size), u64::try_from(self.offset)) else {
            return Err(self.invalid("its size or offset is negative"));
        };
        let end = offset.saturating_add(self.data.len() as u64);
        if kind == Kind::File && end > size {
            return Err(self.invalid(format!("the data ends at {end}, beyond the file's {size} bytes")));
        }
        if kind == Kind::Symlink && (self.data.is_empty() || self.data.contains(&0)) {
            return Err(self.invalid("a symbolic link's target is empty or has a NUL in it"));
        }
        Ok(place.components().collect())
    }

    /// Refuses what only mknod makes.
    pub(super) fn kind(&self) -> Result<Kind> {
        match SFlag::from_bits_truncate(self.mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFDIR => Ok(Kind::Directory),
            SFlag::S_IFLNK => Ok(Kind::Symlink),
            kind if kind == SFlag::S_IFREG || kind.is_empty() => Ok(Kind::File),
            _ => Err(self.invalid(format!(
                "mode {:o} is neither a file nor a directory nor a symbolic link",
                self.mode
            ))),
        }
    }

    pub(super) fn owner(&self) -> Result<(Option<Uid>, Option<Gid>)> {
        let id = |number: i32| match number {
            -1 => Ok(None),
            number => u32::try_from(number)
                .map(Some)
                .map_err(|_| self.invalid(format!("{number} is neither a user nor a group"))),
        };
        Ok((id(self.uid)?.map(Uid::from_raw), id(self.gid)?.map(Gid::from_raw)))
    }
}
