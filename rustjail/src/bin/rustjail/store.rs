//! The containers' state: one directory each below `--root`, named by the id.
//!
//! ```text
//!  ID/              made by mkdir, which is what keeps an id unique; locked by flock while it changes
//!  ID/state.new     while it is created: the record, a line of JSON, and after it the configuration as it was read
//!  ID/state         the same once the creation came to its end
//!  ID/start         the socket on which a created container waits
//!  ~seccomp/        see [`crate::filters`]
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

use crate::{
    cgroups,
    error::Error,
    filters::{self, Understood},
    init::Init,
    status::Status,
};

const STATE: &str = "state";
const DRAFT: &str = "state.new";
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
    /// The creation came to its end: the name of the file tells.
    #[serde(skip)]
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

    /// Whether another command is changing it, or a process that one has left is stuck in its creation.
    pub fn is_being_changed(&self) -> bool {
        let Ok(dir) = File::open(&self.path) else { return false };
        matches!(Flock::lock(dir, FlockArg::LockSharedNonblock), Err((_, Errno::EAGAIN)))
    }

    /// What is known of it; `None` when its creation did not come as far as that.
    pub fn record(&self) -> Result<Option<Record>, Error> {
        let Some((name, text)) = self.read()? else { return Ok(None) };
        let complete = name == STATE;
        match serde_json::from_slice::<Record>(split(&text).0) {
            Ok(record) => Ok(Some(Record { complete, ..record })),
            // Whoever wrote it died over it, before anything it tells of was made.
            Err(_) if !complete => Ok(None),
            Err(error) => Err(Error::json(self.path.join(name))(error)),
        }
    }

    /// The configuration it was made from.
    pub fn config(&self) -> Result<Spec, Error> {
        let (path, text) = self.config_text()?;
        serde_json::from_slice(&text).map_err(Error::json(path))
    }

    /// The same as far as an exec needs it: without the seccomp profile, if its filter is known below `root`.
    pub fn config_and_filter(&self, root: &Path) -> Result<Understood, Error> {
        let (path, text) = self.config_text()?;
        filters::understand(root, &text).map_err(Error::json(path))
    }

    fn config_text(&self) -> Result<(PathBuf, Vec<u8>), Error> {
        let missing = || Error::io("read", self.path.join(STATE))(io::Error::from(io::ErrorKind::NotFound));
        let (name, text) = self.read()?.ok_or_else(missing)?;
        Ok((self.path.join(name), split(&text).1.to_vec()))
    }

    /// The state and the name it has.
    fn read(&self) -> Result<Option<(&'static str, Vec<u8>)>, Error> {
        // It may be given its last name between the first two attempts.
        for name in [STATE, DRAFT, STATE] {
            let path = self.path.join(name);
            match fs::read(&path) {
                Ok(text) => return Ok(Some((name, text))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("read", &path)(error)),
            }
        }
        Ok(None)
    }

    /// Keeps what `delete` has to know if the creation does not come to its end, and `config`, as it was read.
    pub fn write(&self, record: &Record, config: &[u8]) -> Result<(), Error> {
        let path = self.path.join(DRAFT);
        let mut text = serde_json::to_vec(record).map_err(Error::json(&path))?;
        text.push(b'\n');
        text.extend_from_slice(config);
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(&text))
            .map_err(Error::io("write", &path))
    }

    /// Tells that the creation came to its end.
    pub fn complete(&self) -> Result<(), Error> {
        let path = self.path.join(STATE);
        fs::rename(self.path.join(DRAFT), &path).map_err(Error::io("make", &path))
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
        let remove_file = |name| match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", self.path.join(name))(error))
            }
            _ => Ok(()),
        };
        remove_file(STATE)?;
        // More is left only of one that was never started or never complete.
        fs::remove_dir(&self.path).or_else(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty => {
                [START, DRAFT].into_iter().try_for_each(remove_file)?;
                fs::remove_dir(&self.path).map_err(Error::io("remove", &self.path))
            }
            _ => Err(Error::io("remove", &self.path)(error)),
        })
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
            // When we hold the lock, whoever was to complete it is gone, but the init may have been let go before.
            let lives = || record.and_then(|record| record.init.as_ref()).is_some_and(Init::is_alive);
            let at_work = (self.lock.is_none() && self.is_being_changed()) || lives();
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

/// The record and the configuration in a state.
fn split(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    let (record, config) = text.split_at(end);
    (record, config.get(1..).unwrap_or_default())
}

fn unix_socket() -> nix::Result<OwnedFd> {
    socket::socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}
