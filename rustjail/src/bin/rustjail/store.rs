//! The containers' state: one directory each below `--root`, named by the id.
//!
//! ```text
//!  ID/              made by mkdir, which is what keeps an id unique; locked by flock while it changes
//!  ID/config.json   the configuration as it was at creation
//!  ID/state.json    the record, replaced by rename
//!  ID/start         the socket on which a created container waits
//! ```
//! Nothing about a container's process is believed to be as it was written: whether it lives, waits or is frozen
//! is asked of the kernel each time.
//!
//! ```text
//!  mkdir     READY      START      init ends        rmdir
//!   --> creating --> created --> running --> stopped -->     (paused: running or created, and frozen)
//!           | the creating command dies      ^
//!           +--------------------------------+
//! ```

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr},
};
use oci_spec::runtime::Spec;
use rustjail::cgroup::{Cgroup, systemd::Unit};
use serde::{Deserialize, Serialize};

use crate::{cgroups, error::Error, init::Init, status::Status};

const STATE: &str = "state.json";
const DRAFT: &str = "state.json.new";
const CONFIG: &str = "config.json";
const START: &str = "start";

/// What runc accepts, and a file name may be.
const MAX_ID: usize = 255;

/// One container's directory.
#[derive(Debug)]
pub struct Container {
    /// Its id.
    pub id: String,
    path: PathBuf,
    /// Device and inode of the directory, once it was locked.
    identity: Option<(u64, u64)>,
    lock: Option<Flock<File>>,
}

/// What is kept of a container besides its configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Of the configuration.
    pub oci_version: String,
    /// Where the configuration was.
    pub bundle: PathBuf,
    /// Its root file system.
    pub rootfs: PathBuf,
    /// When it was made, as RFC 3339.
    pub created: String,
    /// Of the configuration.
    pub annotations: HashMap<String, String>,
    /// Its control group, relative to the hierarchies' roots.
    pub cgroup: Option<PathBuf>,
    /// The unit of systemd's that the group is of.
    #[serde(default)]
    pub unit: Option<Unit>,
    /// The configuration asks for more after the creation: hooks, or a group of resctrl to be removed.
    pub has_sequel: bool,
    /// Its group of resctrl was made for it.
    #[serde(default)]
    pub made_resctrl: bool,
    /// Its init, once there is one.
    pub init: Option<Init>,
    /// The creation came to its end.
    pub complete: bool,
}

impl Container {
    /// Takes the id; the container stays locked until the value is dropped.
    pub fn create(root: &Path, id: &str) -> Result<Self, Error> {
        check_id(id)?;
        let path = root.join(id);
        match mkdir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(root)
                    .map_err(Error::io("create", root))?;
                mkdir(&path)
            }
            result => result,
        }
        .map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists { path: path.clone() },
            _ => Error::Io { action: "create", path: path.clone(), source: error },
        })?;
        let mut container = Self { id: id.to_owned(), path, identity: None, lock: None };
        container.lock(root)?;
        Ok(container)
    }

    /// A container that exists, to be looked at.
    pub fn open(root: &Path, id: &str) -> Result<Self, Error> {
        check_id(id)?;
        let path = root.join(id);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => Ok(Self { id: id.to_owned(), path, identity: None, lock: None }),
            _ => Err(Error::NotFound { id: id.to_owned(), root: root.to_owned() }),
        }
    }

    /// A container that exists, to be changed; waits until nobody else changes it.
    pub fn open_locked(root: &Path, id: &str) -> Result<Self, Error> {
        let mut container = Self::open(root, id)?;
        container.lock(root)?;
        Ok(container)
    }

    /// The ids below `root`, sorted.
    pub fn list(root: &Path) -> Result<Vec<String>, Error> {
        let entries = match fs::read_dir(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            result => result.map_err(Error::io("list", root))?,
        };
        let mut ids: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|id| check_id(id).is_ok())
            .collect();
        ids.sort();
        Ok(ids)
    }

    fn lock(&mut self, root: &Path) -> Result<(), Error> {
        let gone = || Error::NotFound { id: self.id.clone(), root: root.to_owned() };
        let dir = File::open(&self.path).map_err(|_| gone())?;
        let locked = loop {
            match Flock::lock(
                dir.try_clone().map_err(Error::io("lock", &self.path))?,
                FlockArg::LockExclusive,
            ) {
                Ok(locked) => break locked,
                Err((_, Errno::EINTR)) => {}
                Err((_, errno)) => return Err(Error::io("lock", &self.path)(errno)),
            }
        };
        // Whoever held the lock may have deleted it, and somebody else made one of the same id.
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let held = dir.metadata().map(identity).ok();
        let found = fs::symlink_metadata(&self.path).map(identity).ok();
        if held != found || self.identity.is_some_and(|known| Some(known) != held) {
            return Err(gone());
        }
        self.identity = held;
        self.lock = Some(locked);
        Ok(())
    }

    /// Keeps others from changing it again, if it is still there.
    pub fn relock(&mut self, root: &Path) -> Result<(), Error> {
        self.lock(root)
    }

    /// Lets others change it.
    pub fn unlock(&mut self) {
        self.lock = None;
    }

    /// Whether another command is changing it.
    fn is_being_changed(&self) -> bool {
        let Ok(dir) = File::open(&self.path) else { return false };
        matches!(Flock::lock(dir, FlockArg::LockSharedNonblock), Err((_, Errno::EAGAIN)))
    }

    /// What is known of it; `None` when its creation did not come as far as that.
    pub fn record(&self) -> Result<Option<Record>, Error> {
        let path = self.path.join(STATE);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(Error::json(&path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    /// Replaces the record.
    pub fn write_record(&self, record: &Record) -> Result<(), Error> {
        self.draft_record(record)?;
        self.publish_record()
    }

    /// Has a record ready, which nobody reads before [`Container::publish_record`].
    pub fn draft_record(&self, record: &Record) -> Result<(), Error> {
        let text = serde_json::to_vec(record).map_err(Error::json(&self.path))?;
        write(&self.path.join(DRAFT), &text)
    }

    /// Replaces the record by the one that is ready.
    pub fn publish_record(&self) -> Result<(), Error> {
        let path = self.path.join(STATE);
        fs::rename(self.path.join(DRAFT), &path).map_err(Error::io("replace", &path))
    }

    /// Keeps the configuration as it was read.
    pub fn write_config(&self, text: &[u8]) -> Result<(), Error> {
        write(&self.path.join(CONFIG), text)
    }

    /// The configuration it was made from.
    pub fn config(&self) -> Result<Spec, Error> {
        let path = self.path.join(CONFIG);
        let text = fs::read(&path).map_err(Error::io("read", &path))?;
        serde_json::from_slice(&text).map_err(Error::json(&path))
    }

    /// The socket on which the init will wait for [`Container::connect`].
    pub fn listen(&self) -> Result<OwnedFd, Error> {
        let shown = self.path.join(START);
        let socket = unix_socket().map_err(Error::io("make the socket", &shown))?;
        self.with_address(|address| socket::bind(socket.as_raw_fd(), address))
            .map_err(Error::io("bind", &shown))?;
        socket::listen(&socket, Backlog::MAXCONN).map_err(Error::io("listen on", &shown))?;
        Ok(socket)
    }

    /// A connection to the init; `None` when none waits.
    pub fn connect(&self) -> Result<Option<OwnedFd>, Error> {
        let shown = self.path.join(START);
        if !shown.exists() {
            return Ok(None);
        }
        let socket = unix_socket().map_err(Error::io("make the socket", &shown))?;
        match self.with_address(|address| socket::connect(socket.as_raw_fd(), address)) {
            Ok(()) => Ok(Some(socket)),
            // Nobody has it open any more: execve has closed it, or the process is gone.
            Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(None),
            Err(errno) => Err(Error::io("connect to", &shown)(errno)),
        }
    }

    /// The directory's path may be longer than the 107 bytes of a socket's address.
    fn with_address<T>(&self, with: impl FnOnce(&UnixAddr) -> nix::Result<T>) -> nix::Result<T> {
        let dir = File::open(&self.path)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
        let address = UnixAddr::new(format!("/proc/self/fd/{}/{START}", dir.as_fd().as_raw_fd()).as_str())?;
        with(&address)
    }

    /// Removes what `start` no longer needs.
    pub fn remove_start(&self) {
        let _ = fs::remove_file(self.path.join(START));
    }

    /// Gives the id back.
    pub fn remove(self) -> Result<(), Error> {
        // The record last: without it the rest could not be cleaned up.
        for name in [START, CONFIG, DRAFT, STATE] {
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", self.path.join(name))(error));
                }
                _ => {}
            }
        }
        fs::remove_dir(&self.path).map_err(Error::io("remove", &self.path))
    }

    /// What the container is now.
    pub fn status(&self, record: Option<&Record>) -> Result<Status, Error> {
        self.status_if(record, cgroups::is_frozen)
    }

    /// The same, by its group that is open already.
    pub fn status_in(&self, record: Option<&Record>, group: Option<&Cgroup>) -> Result<Status, Error> {
        self.status_if(record, |_| Ok(group.map(Cgroup::frozen).transpose()?.unwrap_or(false)))
    }

    fn status_if(
        &self,
        record: Option<&Record>,
        is_frozen: impl FnOnce(&Record) -> Result<bool, Error>,
    ) -> Result<Status, Error> {
        let complete = record.filter(|record| record.complete);
        let Some((record, init)) = complete.and_then(|record| Some((record, record.init.as_ref()?))) else {
            // When we hold the lock, whoever was to complete it is gone.
            let at_work = self.lock.is_none() && self.is_being_changed();
            return Ok(if at_work { Status::Creating } else { Status::Stopped });
        };
        if !init.is_alive() {
            return Ok(Status::Stopped);
        }
        if is_frozen(record)? {
            return Ok(Status::Paused);
        }
        Ok(if self.connect()?.is_some() { Status::Created } else { Status::Running })
    }
}

/// A name that runc takes, and that is no path.
fn check_id(id: &str) -> Result<(), Error> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
    let plain = !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(fits) && id != "." && id != "..";
    if plain { Ok(()) } else { Err(Error::Id { id: id.to_owned() }) }
}

fn mkdir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o711).create(path)
}

fn write(path: &Path, text: &[u8]) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text))
        .map_err(Error::io("write", path))
}

fn unix_socket() -> nix::Result<OwnedFd> {
    socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}
