//! The steps of making one storage, each written down before it is taken.
//!
//! The record on disk names what is to be undone before it can exist, so whatever kills the worker, the next
//! one finds everything; [`Undo`] tells what did not come about.

use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    mount::{MsFlags, mount},
    sys::stat::{Mode, mkdirat},
};
use serde::{Deserialize, Serialize};

use super::{
    error::{Result, StorageError, failed_to},
    options::{Options, PROPAGATION},
    place,
    request::Storage,
    undo::Undo,
};

/// Raised when an older worker could not understand what a newer one wrote.
pub(super) const VERSION: u32 = 2;

/// A storage as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) version: u32,
    /// Rises with each storage: what is mounted later is unmounted earlier.
    pub(super) sequence: u64,
    pub(super) mount_point: PathBuf,
    pub(super) driver: String,
    pub(super) source: String,
    pub(super) fstype: String,
    pub(super) shared: bool,
    /// Ids of containers; "" is the sandbox.
    pub(super) users: BTreeSet<String>,
    /// All steps were taken.
    pub(super) ready: bool,
    pub(super) undo: Vec<Undo>,
    /// The image that was unpacked for it.
    #[cfg(feature = "image-pull")]
    #[serde(default)]
    pub(super) image: Option<super::image::Used>,
}

/// A record and the file it is kept in.
#[derive(Debug, Clone)]
pub(super) struct Steps {
    pub(super) record: Record,
    file: PathBuf,
}

impl Steps {
    /// Of a storage that is about to be made, for `user`.
    pub(super) fn new(directory: &Path, sequence: u64, storage: &Storage, shared: bool, user: &str) -> Self {
        let record = Record {
            version: VERSION,
            sequence,
            mount_point: storage.mount_point.clone(),
            driver: storage.driver.clone(),
            source: storage.identity(),
            fstype: storage.fstype.clone(),
            shared,
            users: [user.to_owned()].into(),
            ready: false,
            undo: Vec::new(),
            #[cfg(feature = "image-pull")]
            image: None,
        };
        Self { record, file: directory.join(format!("{sequence}.json")) }
    }

    /// As an earlier worker left it.
    pub(super) fn load(file: PathBuf) -> io::Result<Self> {
        let record: Record = serde_json::from_slice(&fs::read(&file)?)?;
        match record.version {
            VERSION => Ok(Self { record, file }),
            other => Err(io::Error::other(format!("it is of version {other}, this agent knows {VERSION}"))),
        }
    }

    /// Writes the record down.
    pub(super) fn save(&self) -> Result<()> {
        let fresh = self.file.with_extension("new");
        let write = || -> io::Result<()> {
            fs::write(&fresh, serde_json::to_vec(&self.record)?)?;
            fs::rename(&fresh, &self.file)
        };
        // Half a record would only take up what the next one needs.
        write().inspect_err(|_| _ = fs::remove_file(&fresh)).map_err(failed_to(|| {
            format!("write the journal of the storage {}", self.record.mount_point.display())
        }))
    }

    /// Announces a step.
    pub(super) fn will(&mut self, undo: Undo) -> Result<()> {
        self.record.undo.push(undo);
        self.save()
    }

    /// Takes everything back, the last first, and then the record. What fails stays in it to be tried again.
    pub(super) fn undo(&mut self) -> Result<()> {
        let mut left = Vec::new();
        let mut first = Ok(());
        while let Some(undo) = self.record.undo.pop() {
            if let Err(error) = undo.run() {
                left.push(undo);
                first = first.and(Err(error));
            }
        }
        if first.is_ok() {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(failed_to(|| format!("remove {}", self.file.display()))(error))
                }
                _ => Ok(()),
            };
        }
        left.reverse();
        self.record.undo = left;
        first.and(self.save())
    }

    /// The storage's own directory, beside its record.
    pub(super) fn own_place(&self) -> PathBuf {
        self.file.with_extension("")
    }

    /// Makes the directory `path` and those above it that are missing.
    pub(super) fn directory(&mut self, path: &Path) -> Result<()> {
        self.ensure(path, |steps, path| steps.make_directory(path))
    }

    /// Makes the directory `path`, which goes with all that is in it by then.
    pub(super) fn own_directory(&mut self, path: &Path) -> Result<()> {
        if place::find(path).map_err(look(path))?.is_some() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.directory(parent)?;
        }
        self.will(Undo::Tree { path: path.to_owned() })?;
        self.directory(path)
    }

    /// Makes the empty file `path`, to be mounted on.
    pub(super) fn file(&mut self, path: &Path) -> Result<()> {
        self.ensure(path, |steps, path| {
            steps.will(Undo::File { path: path.to_owned() })?;
            let (parent, name) = steps.parent(path)?;
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let made = openat(&parent, name, flags, Mode::from_bits_retain(0o644));
            made.map(drop).map_err(failed_to(|| format!("make {}", path.display())))
        })
    }

    fn ensure(&mut self, path: &Path, make: impl Fn(&mut Self, &Path) -> Result<()>) -> Result<()> {
        match place::find(path).map_err(look(path))? {
            Some(_there) => Ok(()),
            None => {
                if let Some(parent) = path.parent() {
                    self.directory(parent)?;
                }
                make(self, path)
            }
        }
    }

    fn make_directory(&mut self, path: &Path) -> Result<()> {
        self.will(Undo::Directory { path: path.to_owned() })?;
        let (parent, name) = self.parent(path)?;
        match mkdirat(&parent, name, Mode::from_bits_retain(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(failed_to(|| format!("make the directory {}", path.display()))(errno)),
        }
    }

    fn parent<'path>(&self, path: &'path Path) -> Result<(std::os::fd::OwnedFd, &'path Path)> {
        let none =
            || StorageError::Invalid { mount_point: path.to_owned(), problem: "has no parent".to_owned() };
        let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(none)?;
        Ok((place::open(parent).map_err(look(parent))?, Path::new(name)))
    }

    /// Mounts onto `target`, which exists.
    pub(super) fn mount(
        &mut self,
        source: Option<&Path>,
        target: &Path,
        fstype: &str,
        options: &Options,
    ) -> Result<()> {
        self.put(source, target, fstype, options, false)
    }

    /// The same, of a file system on a device, which is written out before it is unmounted.
    pub(super) fn mount_device(
        &mut self,
        device: &Path,
        target: &Path,
        fstype: &str,
        options: &Options,
    ) -> Result<()> {
        self.put(Some(device), target, fstype, options, true)
    }

    fn put(
        &mut self,
        source: Option<&Path>,
        target: &Path,
        fstype: &str,
        options: &Options,
        flush: bool,
    ) -> Result<()> {
        let place = place::open(target).map_err(look(target))?;
        let beneath = place::mount_id(&place).map_err(look(target))?;
        self.will(Undo::Unmount { path: target.to_owned(), beneath, flush })?;
        let name = source.unwrap_or(Path::new("none"));
        let flags = options.flags & !PROPAGATION;
        let bind = flags.contains(MsFlags::MS_BIND);
        let first = if bind { flags & (MsFlags::MS_BIND | MsFlags::MS_REC) } else { flags };
        let data = Some(options.data.as_str()).filter(|data| !data.is_empty() && !bind);
        let failed = |errno: Errno| {
            let action = format!(
                "mount {} ({fstype:?}, options {:?}) on {}{}",
                name.display(),
                options.data,
                target.display(),
                hint(errno, fstype)
            );
            StorageError::Io { action, source: errno.into() }
        };
        mount(Some(name), &place::by_descriptor(&place), Some(fstype), first, data).map_err(failed)?;
        // A bind takes no other flag, and propagation no other than itself.
        let top = place::open(target).map_err(look(target))?;
        let path = place::by_descriptor(&top.as_fd());
        let attributes = flags & !(MsFlags::MS_BIND | MsFlags::MS_REC);
        if bind && !attributes.is_empty() {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | attributes;
            mount(None::<&Path>, &path, None::<&str>, flags, None::<&str>).map_err(failed)?;
        }
        let propagation = options.flags & PROPAGATION;
        if !propagation.is_empty() {
            let flags = propagation | (options.flags & MsFlags::MS_REC);
            mount(None::<&Path>, &path, None::<&str>, flags, None::<&str>).map_err(failed)?;
        }
        Ok(())
    }
}

pub(super) fn look(path: &Path) -> impl FnOnce(io::Error) -> StorageError {
    let path = path.display().to_string();
    move |source| {
        let link = source.raw_os_error() == Some(Errno::ELOOP as i32);
        let action =
            format!("look up {path}{}", if link { ", in which no symbolic link is allowed" } else { "" });
        StorageError::Io { action, source }
    }
}

/// What the errno of mount(2) does not say by itself.
fn hint(errno: Errno, fstype: &str) -> String {
    match errno {
        Errno::ENODEV => format!(" (this kernel has no file system {fstype:?}, or its module is not loaded)"),
        Errno::EINVAL => " (the superblock is of another type or damaged, or an option is wrong)".to_owned(),
        Errno::ENOTBLK => " (the source has to be a block device)".to_owned(),
        _ => String::new(),
    }
}
