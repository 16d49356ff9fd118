//! Taking a container down.
//!
//! ```text
//!   kill the cgroup -> wait until it is empty -> wait for the exits -> delete cgroup, bundle, descriptors,
//!   storages -> poststop hooks -> journal -> give the id back
//! ```
//!
//! A step that fails does not keep the later ones from running; what it left is tried again by the next
//! removal, and the id stays taken until everything is gone. Waiting is for events: the kernel's `populated`
//! notice, a pidfd, an exit.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use rustjail::cgroup::Cgroup;
use tokio::io::Interest;

use super::{
    Core, Error, Result, blocking, container::Container, error::failed_to, process::Process, resctrl,
    state::Event,
};
use crate::reactor::register;

impl Core {
    /// Removes a container; after `timeout` answers that the work goes on, and it does.
    pub(super) async fn remove_container(self: &Rc<Self>, id: &str, timeout: Option<Duration>) -> Result<()> {
        let container = self.container(id)?;
        let core = Rc::clone(self);
        let removal = crate::task::spawn(async move { core.take_down(&container).await });
        let outcome = match timeout {
            None => removal.await,
            Some(limit) => tokio::time::timeout(limit, removal).await.map_err(|_elapsed| Error::Timeout {
                action: format!("the removal of container {id:?}"),
                seconds: limit.as_secs(),
            })?,
        };
        outcome.map_err(io::Error::other).map_err(failed_to(|| format!("remove container {id:?}")))?
    }

    /// Undoes a container whose creation failed. What cannot be undone now is left to a later removal.
    pub(super) async fn undo(self: &Rc<Self>, container: &Rc<Container>) {
        if let Err(error) = self.take_down(container).await {
            slog::error!(self.log, "container not undone"; "container" => &container.id, "error" => %error);
        }
    }

    /// Everything, once: a second caller waits for the first and finds the container gone.
    pub(super) async fn take_down(self: &Rc<Self>, container: &Rc<Container>) -> Result<()> {
        // A creation under way must not find the group deleted beneath it: end it first, and it undoes itself.
        let undoing_itself = container.created.get().is_none();
        container.apply(Event::Remove, "remove")?;
        let mut failures = vec![self.record(container)];
        if undoing_itself {
            failures.push(kill(container).await);
            container.created.wait().await;
        }
        let _turn = container.removal.acquire().await.map_err(io::Error::other);
        if !self.is_in_table(container) {
            return Ok(());
        }
        // An exec that was being launched when the state changed may not be in the group yet; no new one begins.
        self.exits.all_known().await;
        if !self.is_over(container).await {
            failures.push(self.end_processes(container).await);
            failures.push(self.delete_files(container).await);
        }
        for process in container.processes() {
            self.release_all(&process);
        }
        container.execs.borrow_mut().clear();
        failures.push(self.storages.release(&container.id).await.map_err(Error::from));
        failures.into_iter().collect::<Result<()>>()?;
        self.run_poststop_hooks(container).await;
        self.journal
            .remove_container(&container.id)
            .map_err(failed_to(|| format!("remove the journal of container {:?}", container.id)))?;
        container.end_oom_watch();
        self.table.borrow_mut().remove(&container.id);
        slog::info!(self.log, "container removed"; "container" => &container.id);
        Ok(())
    }

    /// The usual end, in one turn of the pool: its processes exited by themselves and left none behind, so its
    /// cgroup and files can go. False if anything is left, for whatever reason.
    async fn is_over(&self, container: &Rc<Container>) -> bool {
        let exited = |process: &Rc<Process>| process.pid.get() == 0 || process.exit.get().is_some();
        let Some(cgroup) = container.cgroup().filter(|_| container.processes().iter().all(exited)) else {
            return false;
        };
        let bundle = self.journal.bundle(&container.id);
        let oom = container.last_oom_look();
        let (over, kills) = blocking(move || {
            let over = !cgroup.populated()?;
            let kills = oom.map_or(0, |oom| oom.look());
            let deleted = over && cgroup.delete().is_ok() && remove_bundle(bundle).is_ok();
            Ok((deleted, kills))
        })
        .await
        .unwrap_or_default();
        self.oom_killed(container, kills);
        over
    }

    async fn end_processes(&self, container: &Container) -> Result<()> {
        let mut failures = vec![kill(container).await];
        for process in container.processes() {
            let pidfd = process.pidfd.borrow().clone();
            if let Some(pidfd) = pidfd {
                // Reaches one that is not in the group: it was being moved there, or there is no group.
                let _gone = rustjail::sys::pidfd::signal(pidfd.as_fd(), nix::libc::SIGKILL);
            }
        }
        if let Some(cgroup) = container.cgroup() {
            failures.push(empty(cgroup).await);
        }
        for process in container.processes() {
            if process.pid.get() != 0 {
                process.exit.wait().await;
            }
        }
        failures.into_iter().collect()
    }

    async fn delete_files(&self, container: &Rc<Container>) -> Result<()> {
        let cgroup = container.cgroup();
        let bundle = self.journal.bundle(&container.id);
        let oom = container.last_oom_look();
        let (kills, deleted) = blocking(move || {
            // The count goes with the group.
            let kills = oom.map_or(0, |oom| oom.look());
            let deleted = cgroup.map_or(Ok(()), |cgroup| cgroup.delete());
            remove_bundle(bundle)?;
            Ok((kills, deleted))
        })
        .await?;
        self.oom_killed(container, kills);
        Ok(deleted?)
    }
}

pub(super) async fn kill(container: &Container) -> Result<()> {
    match container.cgroup() {
        Some(cgroup) => blocking(move || Ok(cgroup.kill()?)).await,
        None => Ok(()),
    }
}

/// Only the agent's own files are in it: the root filesystem is where the host put it.
fn remove_bundle(bundle: PathBuf) -> Result<()> {
    #[cfg(feature = "cdh")]
    super::secrets::let_go_of_image(&bundle)
        .map_err(failed_to(|| format!("unmount the image in {}", bundle.display())))?;
    resctrl::delete(&bundle)?;
    match fs::remove_dir_all(&bundle) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed_to(|| format!("remove the bundle {}", bundle.display()))(error))
        }
        _ => Ok(()),
    }
}

/// Waits until no process is left in `cgroup`. Each was killed; one that forked just before leaves a child that
/// the kernel's kill caught too, and the loop kills what came in by other ways.
async fn empty(cgroup: Arc<Cgroup>) -> Result<()> {
    let watch = || failed_to(|| format!("watch the cgroup {}", cgroup.path().display()));
    let Some(events) = cgroup.events() else {
        return empty_by_pidfds(&cgroup).await;
    };
    let events = events.try_clone_to_owned().map_err(watch())?;
    let events = register(events, Interest::PRIORITY).map_err(watch())?;
    loop {
        if !populated(&cgroup).await? {
            return Ok(());
        }
        events.ready(Interest::PRIORITY).await.map_err(watch())?.clear_ready();
    }
}

/// Where the kernel tells no such event, the processes themselves are waited for.
async fn empty_by_pidfds(cgroup: &Arc<Cgroup>) -> Result<()> {
    loop {
        let group = Arc::clone(cgroup);
        let left = blocking(move || {
            group.kill()?;
            let pids = group.pids()?;
            Ok(pids
                .into_iter()
                .filter_map(|pid| rustjail::sys::pidfd::open(pid).ok())
                .collect::<Vec<OwnedFd>>())
        })
        .await?;
        if left.is_empty() {
            return Ok(());
        }
        for pidfd in left {
            let watch = failed_to(|| "wait for a killed process".to_owned());
            let pidfd = register(pidfd, Interest::READABLE).map_err(watch)?;
            let _ended = pidfd.readable().await;
        }
    }
}

async fn populated(cgroup: &Arc<Cgroup>) -> Result<bool> {
    let group = Arc::clone(cgroup);
    blocking(move || Ok(group.populated()?)).await
}
