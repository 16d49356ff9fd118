//! Hardware that comes while the guest runs.
//!
//! ```text
//!   subscribe -> look at sysfs -> there: done
//!                   ^   '-- not yet: wait for any uevent --'   until the deadline, which tells how far it got
//! ```
//!
//! An event carries no state here: sysfs does. The listener only says "look again", so a device that was there
//! before the agent, one that is just being bound and one that comes later are found by the same look; lost
//! events (ENOBUFS), garbage and floods cost at most a look too many, and no memory.

use std::{io, path::PathBuf, time::Duration};

use tokio::{sync::watch, time::timeout};

pub mod block;
#[cfg(any(target_arch = "s390x", test))]
mod ccw;
pub mod cpu;
mod drivers;
pub mod memory;
pub mod network;
pub mod pci;
mod uevent;

pub use uevent::Socket;

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HotplugError {
    /// It did not come.
    #[error("{what} did not appear within {} s: {cause}", .patience.as_secs_f32())]
    Absent {
        /// What was waited for.
        what: String,
        /// How long.
        patience: Duration,
        /// How far the last look got.
        cause: String,
    },
    /// Its address is not one.
    #[error("{address:?} is no {kind}: {problem}")]
    Address {
        /// As the request has it.
        address: String,
        /// "PCI path", "SCSI address" and the like.
        kind: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// What is there is something else.
    #[error("{} is {found}, not {wanted}", path.display())]
    Kind {
        /// Where.
        path: PathBuf,
        /// What is there.
        found: &'static str,
        /// What should be.
        wanted: &'static str,
    },
    /// A file of sysfs or a device node failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// "read", "write" or "open".
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

/// The result of everything here.
pub type Result<T> = std::result::Result<T, HotplugError>;

/// What one look at sysfs found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look<T> {
    /// All there is to wait for.
    Found(T),
    /// How far it got, as the end of a sentence.
    NotYet(String),
}

/// Where the kernel shows its devices. Other than `/sys` and `/dev` only for tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// sysfs.
    pub sys: PathBuf,
    /// devtmpfs.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), dev: "/dev".into() }
    }
}

/// Waits for devices. Shared by `Rc`; needs [`Hotplug::listen`] to run.
#[derive(Debug)]
pub struct Hotplug {
    /// See [`Roots`].
    pub roots: Roots,
    patience: Duration,
    changes: watch::Sender<u64>,
}

impl Hotplug {
    /// Nothing is waited for longer than `patience`.
    pub fn new(roots: Roots, patience: Duration) -> Self {
        Self { roots, patience, changes: watch::Sender::new(0) }
    }

    /// Wakes the waiters whenever the kernel says something; answers how `socket` failed.
    pub async fn listen(&self, socket: Socket) -> io::Error {
        loop {
            match socket.news().await {
                Ok(()) => self.changes.send_modify(|count| *count = count.wrapping_add(1)),
                Err(error) => return error,
            }
        }
    }

    /// Looks until there is something, again after every uevent. `look` reads sysfs and must not block.
    pub async fn wait<T>(&self, what: &str, mut look: impl FnMut(&Roots) -> Result<Look<T>>) -> Result<T> {
        let mut changes = self.changes.subscribe();
        let mut cause = String::new();
        let search = async {
            loop {
                match look(&self.roots)? {
                    Look::Found(found) => return Ok(found),
                    Look::NotYet(progress) => cause = progress,
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        match timeout(self.patience, search).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => {
                Err(HotplugError::Absent { what: what.to_owned(), patience: self.patience, cause })
            }
        }
    }
}

/// Adds the path to an `io::Error`.
fn at(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HotplugError {
    move |source| HotplugError::Io { action, path: path.into(), source }
}

/// The names in a directory of sysfs, in order; none where it does not exist.
fn names(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    fn local<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, work)
    }

    #[test]
    fn what_is_there_needs_no_event() {
        let hotplug = Hotplug::new(Roots::default(), Duration::ZERO);
        assert_eq!(local(hotplug.wait("x", |_| Ok(Look::Found(7)))).unwrap(), 7);
    }

    #[test]
    fn an_event_makes_the_waiter_look_again() {
        let hotplug = Rc::new(Hotplug::new(Roots::default(), Duration::from_secs(30)));
        let looks = Rc::new(Cell::new(0));
        let found = local(async {
            let (waiter, seen) = (Rc::clone(&hotplug), Rc::clone(&looks));
            let waiting = crate::task::spawn(async move {
                waiter
                    .wait("x", |_| {
                        seen.set(seen.get() + 1);
                        Ok(if seen.get() == 3 { Look::Found(()) } else { Look::NotYet("no".into()) })
                    })
                    .await
            });
            while !waiting.is_finished() {
                hotplug.changes.send_modify(|count| *count += 1);
                tokio::task::yield_now().await;
            }
            waiting.await.unwrap()
        });
        found.unwrap();
        assert_eq!(looks.get(), 3);
    }

    #[test]
    fn a_deadline_tells_how_far_it_got() {
        let hotplug = Hotplug::new(Roots::default(), Duration::from_millis(20));
        let error = local(hotplug.wait::<()>("the disk", |_| Ok(Look::NotYet("slot 3 is empty".into()))));
        assert_eq!(error.unwrap_err().to_string(), "the disk did not appear within 0.02 s: slot 3 is empty");
    }
}
