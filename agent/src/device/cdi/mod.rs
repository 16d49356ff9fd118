//! CDI: devices that a container asks for by name and that files in the guest describe.
//!
//! A name is `vendor.com/class=device`. What the device means (environment, nodes, mounts, hooks) a driver's own
//! program writes into a directory of the [`Registry`], perhaps only once the device is plugged. So the directories
//! are watched first, then read, and read again after every change of theirs until all names are known. Nothing of
//! the container's configuration is changed before.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use oci_spec::runtime::Spec;
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};

use super::Result;
use crate::{
    hotplug::{HotplugError, Look},
    reactor::register,
};

mod document;
mod edits;
mod names;
pub mod yaml;

use edits::Edits;
use names::Wanted;

/// Where descriptions are, and how they are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// What a later one describes counts instead of what an earlier one does.
    pub directories: Vec<PathBuf>,
    /// How long a description may take to appear.
    pub patience: Duration,
    /// Whether the variable VISIBLE_CDI_DEVICES asks too.
    pub by_environment: bool,
}

impl Registry {
    /// The directories that are the same everywhere.
    pub fn new(patience: Duration, by_environment: bool) -> Self {
        Self {
            directories: ["/etc/cdi", "/var/run/cdi"].map(PathBuf::from).to_vec(),
            patience,
            by_environment,
        }
    }

    /// Puts the devices that `spec` names into it.
    pub async fn inject(&self, spec: &mut Spec) -> Result<()> {
        let wanted = names::wanted(spec, self.by_environment)?;
        if wanted.is_empty() {
            return Ok(());
        }
        let edits = self.find(Arc::from(wanted)).await?;
        edits::apply(spec, &edits)
    }

    async fn find(&self, wanted: Arc<[Wanted]>) -> Result<Vec<Edits>> {
        let directories = Arc::<[PathBuf]>::from(self.directories.clone());
        let changes = Changes::new().map_err(failed("watch", &directories))?;
        let mut cause = String::new();
        let search = async {
            loop {
                let looked = crate::task::blocking({
                    let (directories, wanted) = (Arc::clone(&directories), Arc::clone(&wanted));
                    let inotify = Arc::clone(&changes.inotify);
                    move || {
                        directories.iter().try_for_each(|directory| watch(&inotify, directory))?;
                        Ok(document::look(&directories, &wanted))
                    }
                });
                match looked.await.flatten().map_err(failed("watch", &directories))?? {
                    Look::Found(edits) => return Ok(edits),
                    Look::NotYet(progress) => cause = progress,
                }
                changes.next().await;
            }
        };
        match timeout(self.patience, search).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => {
                let names: Vec<String> = wanted.iter().map(Wanted::to_string).collect();
                let what = format!("the description of {}", names.join(", "));
                Err(HotplugError::Absent { what, patience: self.patience, cause }.into())
            }
        }
    }
}

fn failed(action: &'static str, directories: &[PathBuf]) -> impl FnOnce(io::Error) -> HotplugError {
    let path = directories.first().cloned().unwrap_or_default();
    move |source| HotplugError::Io { action, path, source }
}

/// Watches `directory`, or as much of the way to it as there is.
fn watch(inotify: &Inotify, directory: &Path) -> io::Result<()> {
    let events = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_ONLYDIR;
    for place in directory.ancestors() {
        match inotify.add_watch(place, events) {
            Err(nix::Error::ENOENT | nix::Error::ENOTDIR) => {}
            outcome => return Ok(outcome.map(drop)?),
        }
    }
    Ok(())
}

/// Changes of watched directories.
struct Changes {
    inotify: Arc<Inotify>,
    ready: AsyncFd<OwnedFd>,
}

impl Changes {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let ready = register(inotify.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Self { inotify: Arc::new(inotify), ready })
    }

    /// Waits for some, and takes them all.
    async fn next(&self) {
        if let Ok(mut ready) = self.ready.readable().await {
            while self.inotify.read_events().is_ok() {}
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests;
