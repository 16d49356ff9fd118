//! A storage as a host asks for it.

use std::path::{Path, PathBuf};

use super::{
    error::{Result, StorageError},
    options::words,
};

/// One entry of a request's storages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Storage {
    /// One of [`super::driver::Driver`]'s names.
    pub driver: String,
    /// For the driver, not for mount(2).
    pub driver_options: Vec<String>,
    /// The driver's business.
    pub source: String,
    /// The file system's type.
    pub fstype: String,
    /// As in fstab.
    pub options: Vec<String>,
    /// Where, and its identity.
    pub mount_point: PathBuf,
    /// Whose its files become.
    pub fs_group: Option<FsGroup>,
    /// Stays when its last user goes.
    pub shared: bool,
    /// What it is put together from. A request names these, and they become one; see [`super::group`].
    pub layers: Vec<Storage>,
}

/// Group ownership of a volume's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsGroup {
    /// The group.
    pub id: u32,
    /// Leave everything alone when the volume's root is as it should be.
    pub on_root_mismatch: bool,
}

impl Storage {
    /// The value of the driver option `NAME=value`.
    pub(super) fn driver_option(&self, name: &str) -> Option<&str> {
        self.driver_options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// The value of the option `NAME=value`.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// The option `NAME=value` as a number of base `radix`.
    pub(super) fn number(&self, name: &str, radix: u32) -> Result<Option<u32>> {
        let parse = |text: &str| {
            u32::from_str_radix(text, radix)
                .map_err(|_| self.invalid(format!("has {name}={text:?}, which is no number of base {radix}")))
        };
        self.option(name).map(parse).transpose()
    }

    /// The source with what tells which part of it is meant and what has to be in it. Storages in which this
    /// differs are not the same.
    pub(super) fn identity(&self) -> String {
        let telling = ["X-kata.partition-number=", "X-kata.dmverity.roothash="];
        let mut identity = match self.layers.as_slice() {
            [] => self.source.clone(),
            layers => layers.iter().map(Self::identity).collect::<Vec<_>>().join(" "),
        };
        for word in words(&self.options).filter(|word| telling.iter().any(|name| word.starts_with(name))) {
            identity.push(' ');
            identity.push_str(word);
        }
        identity
    }

    pub(super) fn invalid(&self, problem: impl Into<String>) -> StorageError {
        StorageError::Invalid { mount_point: self.mount_point.clone(), problem: problem.into() }
    }

    /// The source as an absolute path.
    pub(super) fn source_path(&self) -> Result<&Path> {
        let path = Path::new(&self.source);
        match path.is_absolute() {
            true => Ok(path),
            false => {
                Err(self.invalid(format!("has the source {:?}, which is no absolute path", self.source)))
            }
        }
    }

    pub(super) fn read_only(&self) -> bool {
        self.options.iter().any(|option| option == "ro")
    }
}
