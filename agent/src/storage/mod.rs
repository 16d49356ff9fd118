//! Storages: what a host hands to the sandbox, mounted where containers expect it.
//!
//! ```text
//!   (absent) --acquire--> being made --all steps taken--> ready <--acquire / release--> more or fewer users
//!                            |                              |
//!                            '--a step failed---------------+--last user gone, sandbox gone--> undone --> (absent)
//! ```
//!
//! A storage is its mount point: who names it again is one more user of the same. One transition at a time per
//! storage, none holds up another. Whatever fails, the mount table is afterwards what it was; what could not be
//! undone stays recorded and is tried again by the next release. [`steps`] are written down before they are
//! taken, so a worker that takes over finds all of it.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    rc::Rc,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::AbortHandle,
};

use crate::hotplug::{Hotplug, block::Disk};

mod drivers;
pub mod error;
mod fs_group;
pub mod gpt;
mod group;
#[cfg(feature = "image-pull")]
pub mod image;
mod layer;
mod mapping;
mod options;
mod place;
#[cfg(feature = "image-pull")]
mod pull;
mod request;
mod steps;
mod undo;
pub mod volume;

pub use drivers::names as driver_names;
pub use error::StorageError;
#[cfg(feature = "image-pull")]
pub use image::ImageError;
pub use request::{FsGroup, Storage};

use drivers::{Driver, ephemeral, watchable};
use error::{Result, failed_to};
use steps::Steps;

/// The user that the sandbox itself is.
pub const SANDBOX: &str = "";

/// One mount point.
#[derive(Debug)]
struct Entry {
    /// One transition at a time; others wait.
    turn: Semaphore,
    steps: RefCell<Option<Steps>>,
    follower: RefCell<Option<AbortHandle>>,
}

impl Entry {
    async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        self.turn.acquire().await.map_err(io::Error::other).map_err(failed_to(|| "take turns".into()))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.take() {
            follower.abort();
        }
    }
}

/// All storages of the sandbox. Single-threaded, shared by `Rc`; nothing is borrowed over an await.
#[derive(Debug)]
pub struct Storages {
    log: slog::Logger,
    hotplug: Rc<Hotplug>,
    /// The agent's own directory, which nothing may cover.
    state_dir: PathBuf,
    /// Where the records are.
    records: PathBuf,
    table: RefCell<BTreeMap<PathBuf, Rc<Entry>>>,
    #[cfg(feature = "image-pull")]
    images: image::Images,
    #[cfg(feature = "image-pull")]
    image_patience: Cell<std::time::Duration>,
    last_sequence: Cell<u64>,
}

impl Storages {
    /// None yet; [`Storages::recover`] finds those of an earlier worker.
    pub fn new(hotplug: Rc<Hotplug>, state_dir: &Path, log: slog::Logger) -> Result<Self> {
        let records = state_dir.join("storages");
        fs::create_dir_all(&records).map_err(failed_to(|| format!("make {}", records.display())))?;
        Ok(Self {
            log,
            hotplug,
            state_dir: state_dir.to_owned(),
            records,
            table: RefCell::default(),
            #[cfg(feature = "image-pull")]
            images: image::Images::new(pull::beside(state_dir)),
            #[cfg(feature = "image-pull")]
            image_patience: Cell::new(pull::PATIENCE),
            last_sequence: Cell::new(0),
        })
    }

    /// Where something is mounted, or about to be.
    pub fn mount_points(&self) -> Vec<PathBuf> {
        self.table.borrow().keys().cloned().collect()
    }

    /// Mounts `storages` in their order, or adds `user` to those that are there. What an earlier one of them did
    /// is undone by [`Storages::release`], not here.
    pub async fn acquire(&self, user: &str, storages: Vec<Storage>) -> Result<()> {
        let storages = group::group(storages)?.into_iter();
        let known: Result<Vec<_>> = storages.map(|storage| self.check(storage)).collect();
        for (driver, storage) in known? {
            self.acquire_one(user, driver, storage).await?;
        }
        Ok(())
    }

    /// Everything that can be told of a storage without touching the guest.
    fn check(&self, storage: Storage) -> Result<(Driver, Storage)> {
        let driver = Driver::named(&storage.driver)?;
        match place::check(&storage.mount_point, &self.state_dir) {
            Ok(()) => Ok((driver, storage)),
            Err(problem) => Err(storage.invalid(problem)),
        }
    }

    async fn acquire_one(&self, user: &str, driver: Driver, storage: Storage) -> Result<()> {
        loop {
            let entry = self.entry(&storage.mount_point);
            let _turn = entry.turn().await?;
            if !self.is_current(&storage.mount_point, &entry) {
                // It went while we waited for our turn.
                continue;
            }
            let present = entry.steps.borrow().clone();
            return match present {
                Some(steps) => self.share(&entry, steps, user, &storage),
                None => self.make(&entry, user, driver, storage).await,
            };
        }
    }

    /// The entry of a mount point, made when there is none.
    fn entry(&self, mount_point: &Path) -> Rc<Entry> {
        let fresh = || {
            Rc::new(Entry {
                turn: Semaphore::new(1),
                steps: RefCell::new(None),
                follower: RefCell::new(None),
            })
        };
        Rc::clone(self.table.borrow_mut().entry(mount_point.to_owned()).or_insert_with(fresh))
    }

    fn is_current(&self, mount_point: &Path, entry: &Rc<Entry>) -> bool {
        self.table.borrow().get(mount_point).is_some_and(|current| Rc::ptr_eq(current, entry))
    }

    /// One more user of what is there, if it is the same.
    fn share(&self, entry: &Entry, mut steps: Steps, user: &str, storage: &Storage) -> Result<()> {
        let record = &mut steps.record;
        let conflict = |problem| StorageError::Conflict { mount_point: storage.mount_point.clone(), problem };
        if !record.ready {
            return Err(conflict("is still to be undone; remove its container again".to_owned()));
        }
        if (&record.driver, &record.source, &record.fstype)
            != (&storage.driver, &storage.identity(), &storage.fstype)
        {
            let problem =
                format!("is taken by {} {:?} of type {:?}", record.driver, record.source, record.fstype);
            return Err(conflict(problem));
        }
        record.users.insert(user.to_owned());
        record.shared |= storage.shared;
        steps.save()?;
        *entry.steps.borrow_mut() = Some(steps);
        Ok(())
    }

    async fn make(&self, entry: &Rc<Entry>, user: &str, driver: Driver, storage: Storage) -> Result<()> {
        let sequence = self.last_sequence.get() + 1;
        self.last_sequence.set(sequence);
        let shared = storage.shared || driver.stays();
        let mut steps = Steps::new(&self.records, sequence, &storage, shared, user);
        let outcome = self.mount(&mut steps, user, driver, &storage).await;
        match &outcome {
            Ok(()) => {
                slog::info!(self.log, "storage mounted"; "mount_point" => %storage.mount_point.display(),
                    "driver" => &storage.driver, "source" => storage.identity());
                *entry.steps.borrow_mut() = Some(steps);
                self.follow(entry, driver);
            }
            Err(_) if steps.record.undo.is_empty() => {
                #[cfg(feature = "image-pull")]
                self.give_image_back(&steps).await;
                self.table.borrow_mut().remove(&storage.mount_point);
            }
            // Kept, so that a release tries again what could not be undone.
            Err(_) => *entry.steps.borrow_mut() = Some(steps),
        }
        outcome
    }

    async fn mount(&self, steps: &mut Steps, user: &str, driver: Driver, storage: &Storage) -> Result<()> {
        let disks = driver.find(storage, &self.hotplug).await?;
        #[cfg(feature = "image-pull")]
        self.take_image(steps, driver, storage).await?;
        let (mut own, storage, user, log) =
            (steps.clone(), storage.clone(), user.to_owned(), self.log.clone());
        let (own, outcome) = blocking(move || {
            let outcome = build(&mut own, &storage, driver, &disks, &user);
            if outcome.is_err()
                && let Err(error) = own.undo()
            {
                slog::error!(log, "a storage is not undone"; "error" => %error);
            }
            Ok((own, outcome))
        })
        .await?;
        *steps = own;
        outcome
    }

    /// Starts to keep a watched volume like its source.
    fn follow(&self, entry: &Rc<Entry>, driver: Driver) {
        let paths = entry
            .steps
            .borrow()
            .as_ref()
            .map(|steps| (PathBuf::from(&steps.record.source), steps.record.mount_point.clone()));
        if let Some((source, target)) = paths.filter(|_| driver == Driver::Watchable) {
            let task = crate::task::spawn(watchable::follow(source, target, self.log.clone()));
            *entry.follower.borrow_mut() = Some(task.abort_handle());
        }
    }

    /// Ends `user`'s use of all it has, the last mounted first, and unmounts what nobody uses any more. Everything
    /// is tried; the first failure is told.
    pub async fn release(&self, user: &str) -> Result<()> {
        self.release_where(user, |steps| !steps.record.ready || steps.record.users.contains(user), false)
            .await
    }

    /// Unmounts everything, whoever uses it.
    pub async fn release_all(&self) -> Result<()> {
        self.release_where(SANDBOX, |_| true, true).await
    }

    async fn release_where(&self, user: &str, wanted: impl Fn(&Steps) -> bool, all: bool) -> Result<()> {
        let mut found: Vec<(u64, PathBuf, Rc<Entry>)> = Vec::new();
        for (path, entry) in &*self.table.borrow() {
            if let Some(steps) = &*entry.steps.borrow()
                && wanted(steps)
            {
                found.push((steps.record.sequence, path.clone(), Rc::clone(entry)));
            }
        }
        found.sort_unstable_by_key(|(sequence, ..)| std::cmp::Reverse(*sequence));
        let mut first = Ok(());
        for (_, path, entry) in found {
            let released = self.release_one(&path, &entry, user, all).await;
            first = first.and(released);
        }
        first
    }

    async fn release_one(&self, path: &Path, entry: &Rc<Entry>, user: &str, all: bool) -> Result<()> {
        let _turn = entry.turn().await?;
        let Some(mut steps) = entry.steps.borrow().clone().filter(|_| self.is_current(path, entry)) else {
            return Ok(());
        };
        steps.record.users.remove(user);
        let record = &steps.record;
        if !all && record.ready && (record.shared || !record.users.is_empty()) {
            steps.save()?;
            *entry.steps.borrow_mut() = Some(steps);
            return Ok(());
        }
        if let Some(follower) = entry.follower.take() {
            follower.abort();
        }
        steps.record.ready = false;
        let (steps, outcome) = blocking(move || {
            let outcome = steps.undo();
            Ok((steps, outcome))
        })
        .await?;
        match outcome {
            Ok(()) => {
                #[cfg(feature = "image-pull")]
                self.give_image_back(&steps).await;
                self.table.borrow_mut().remove(path);
                slog::info!(self.log, "storage unmounted"; "mount_point" => %path.display());
                Ok(())
            }
            Err(error) => {
                slog::error!(self.log, "a storage is not undone"; "mount_point" => %path.display(), "error" => %error);
                *entry.steps.borrow_mut() = Some(steps);
                Err(error)
            }
        }
    }

    /// Takes over what earlier workers mounted: what was half made is undone. `is_user` tells who is still there.
    pub async fn recover(&self, is_user: impl Fn(&str) -> bool) -> Result<()> {
        let entries =
            fs::read_dir(&self.records).map_err(failed_to(|| format!("read {}", self.records.display())))?;
        let mut half_made = Vec::new();
        let mut gone = std::collections::BTreeSet::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "json") {
                // A rename that did not come about.
                let _nothing_lost = fs::remove_file(&path);
                continue;
            }
            let steps = match Steps::load(path.clone()) {
                Ok(steps) => steps,
                Err(error) => {
                    slog::error!(self.log, "a storage's record cannot be used";
                        "path" => %path.display(), "error" => %error);
                    continue;
                }
            };
            self.last_sequence.set(self.last_sequence.get().max(steps.record.sequence));
            gone.extend(steps.record.users.iter().filter(|user| !is_user(user)).cloned());
            let mount_point = steps.record.mount_point.clone();
            let entry = self.entry(&mount_point);
            let driver = Driver::named(&steps.record.driver)?;
            let ready = steps.record.ready;
            *entry.steps.borrow_mut() = Some(steps);
            match ready {
                true => self.follow(&entry, driver),
                false => half_made.push((mount_point, entry)),
            }
        }
        #[cfg(feature = "image-pull")]
        self.recover_images().await?;
        for (mount_point, entry) in half_made {
            // Told in the log, and tried again with the next release.
            let _told = self.release_one(&mount_point, &entry, SANDBOX, true).await;
        }
        for user in gone {
            let _told = self.release(&user).await;
        }
        Ok(())
    }

    /// Changes the options of mounted volumes of memory.
    pub async fn update_ephemeral(&self, storages: Vec<Storage>) -> Result<()> {
        for storage in storages {
            let (driver, storage) = self.check(storage)?;
            if driver != Driver::Ephemeral {
                return Err(storage.invalid(format!(
                    "is of the driver {:?}; only \"ephemeral\" can be changed",
                    storage.driver
                )));
            }
            blocking(move || ephemeral::update(&storage)).await?;
        }
        Ok(())
    }
}

/// On the pool: all steps of one storage.
fn build(
    steps: &mut Steps,
    storage: &Storage,
    driver: Driver,
    disks: &[Option<Disk>],
    user: &str,
) -> Result<()> {
    let path = &storage.mount_point;
    let mounted = match place::find(path).map_err(steps::look(path))? {
        Some(_) => place::mounted(path).map_err(steps::look(path))?,
        None => None,
    };
    match mounted {
        None => driver.place(storage, disks, user, steps)?,
        // Put there by the guest's image, which also takes it away.
        Some((fstype, source)) if fstype == storage.fstype && source == storage.source => {}
        Some((fstype, source)) => {
            let problem = format!("finds {source:?} of type {fstype:?} mounted there");
            return Err(StorageError::Conflict { mount_point: path.clone(), problem });
        }
    }
    if let Some(group) = storage.fs_group {
        fs_group::apply(path, group, storage.read_only())?;
    }
    steps.record.ready = true;
    steps.save()
}

/// Runs what may block on the pool.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    crate::task::blocking(work).await.map_err(failed_to(|| "finish work on the pool".to_owned())).flatten()
}
