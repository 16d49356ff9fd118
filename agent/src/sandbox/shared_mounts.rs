//! Mounts that one container of the sandbox made and another one gets: CreateContainer's `shared_mounts`.
//!
//! The new container's init waits for its start, so its mount namespace is complete and nothing of the workload runs
//! in it yet. A thread of its own enters the source's mount namespace, copies the mount, enters the new container's
//! and attaches the copy. Paths are the containers' own: they are resolved inside their roots, and no link of procfs
//! leads out of them.

use std::{
    fs,
    future::poll_fn,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path, PathBuf},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, ResolveFlag, open, openat},
    libc,
    sched::{CloneFlags, setns, unshare},
    sys::stat::{Mode, fstat, mkdirat},
};
use oci_spec::runtime::Spec;
use rustjail::{
    lookup::open_within,
    sys::mount::{attach, clone_tree},
};
use tokio::{io::Interest, time::timeout};

use super::{Core, Error, Result, container::Container, error::failed_to, namespaces::on_own_thread};
use crate::{hotplug::HotplugError, reactor::register};

/// How long a container may take to mount what another is to share. Hosts know no setting for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// What procfs answers about a process that is ending or has ended.
const ENDING: [i32; 3] = [libc::EINVAL, libc::ESRCH, libc::ENOENT];
/// Where engines write down the name a container has in its pod.
pub(super) const NAMES: [&str; 2] = ["io.kubernetes.cri.container-name", "io.kubernetes.cri-o.ContainerName"];

/// One mount to be shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedMount {
    /// The name or the id of the container that has it.
    pub source: String,
    /// Where it is in that container.
    pub source_path: PathBuf,
    /// Where it is to be in the new one.
    pub target_path: PathBuf,
}

impl Core {
    /// Attaches `mounts` in `container`, whose init waits for its start.
    pub(super) async fn share_mounts(&self, container: &Container, mounts: Vec<SharedMount>) -> Result<()> {
        for mount in mounts {
            let source = self.source_of(container, &mount)?;
            self.await_mount(&source, &mount).await?;
            let pidfd = |container: &Container| {
                let pidfd = container.init.pidfd.borrow().clone();
                pidfd.ok_or_else(|| no_source(&mount))
            };
            let (from, to) = (pidfd(&source)?, pidfd(container)?);
            let (path, shared) = (mount.target_path.clone(), mount.source_path.clone());
            let action = || {
                format!("share the mount {} of {:?} at {}", shared.display(), mount.source, path.display())
            };
            let job = mount.clone();
            on_own_thread(move || copy(&from, &to, &job)).await.map_err(failed_to(action))?;
        }
        Ok(())
    }

    /// A container that runs under this name: another of that name may have stopped and not been removed yet.
    fn source_of(&self, container: &Container, mount: &SharedMount) -> Result<Rc<Container>> {
        let table = self.table.borrow();
        let named = |other: &&Rc<Container>| other.id == mount.source || is_named(&other.spec, &mount.source);
        let mut others =
            table.values().filter(|other| other.id != container.id && other.init.exit.get().is_none());
        others.find(named).cloned().ok_or_else(|| no_source(mount))
    }

    /// Waits until `source` has something mounted at the path. The kernel tells of changes of a mount table.
    async fn await_mount(&self, source: &Container, mount: &SharedMount) -> Result<()> {
        let table = PathBuf::from(format!("/proc/{}/mountinfo", source.init.pid.get()));
        let read = || failed_to(|| format!("read {}", table.display()));
        let changes = match fs::File::open(&table) {
            Err(error) if ENDING.contains(&error.raw_os_error().unwrap_or_default()) => {
                return Err(no_source(mount));
            }
            opened => opened.map(OwnedFd::from).map_err(read())?,
        };
        let changes = register(changes, Interest::PRIORITY).map_err(read())?;
        let appears = async {
            loop {
                let mounts = match fs::read_to_string(&table) {
                    // It is dying: it has left its mount namespace, or procfs.
                    Err(error) if ENDING.contains(&error.raw_os_error().unwrap_or_default()) => {
                        source.init.exit.wait().await;
                        return Err(no_source(mount));
                    }
                    mounts => mounts.map_err(read())?,
                };
                if has_mount(&mounts, &mount.source_path) {
                    return Ok(());
                }
                changes.ready(Interest::PRIORITY).await.map_err(read())?.clear_ready();
            }
        };
        let (mut appears, mut gone) = (pin!(appears), pin!(source.init.exit.wait()));
        let either = poll_fn(|context| match appears.as_mut().poll(context) {
            Poll::Pending => gone.as_mut().poll(context).map(|_status| Err(no_source(mount))),
            found => found,
        });
        timeout(PATIENCE, either).await.unwrap_or_else(|_elapsed| {
            let what = format!("the mount {} in container {:?}", mount.source_path.display(), mount.source);
            let cause = "its program has not mounted anything there".to_owned();
            Err(HotplugError::Absent { what, patience: PATIENCE, cause }.into())
        })
    }
}

fn no_source(mount: &SharedMount) -> Error {
    Error::NoMountSource { name: mount.source.clone(), path: mount.source_path.clone() }
}

fn is_named(spec: &Spec, name: &str) -> bool {
    let annotations = spec.annotations().as_ref();
    NAMES.iter().any(|key| annotations.and_then(|all| all.get(*key)).is_some_and(|value| value == name))
}

fn has_mount(table: &str, path: &Path) -> bool {
    let path = path.to_string_lossy();
    let escapes = [('\\', "\\134"), (' ', "\\040"), ('\t', "\\011"), ('\n', "\\012")];
    let escaped = escapes.iter().fold(path.into_owned(), |path, (from, to)| path.replace(*from, to));
    table.lines().any(|line| line.split(' ').nth(4) == Some(&escaped))
}

/// On a thread that does nothing else afterwards.
fn copy(from: &impl AsFd, to: &impl AsFd, mount: &SharedMount) -> io::Result<()> {
    // A thread that shares its root with others may not change its mount namespace.
    unshare(CloneFlags::CLONE_FS)?;
    setns(from, CloneFlags::CLONE_NEWNS)?;
    let source = look_up(&mount.source_path)?;
    let directory = fstat(&source)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let tree = clone_tree(source.as_fd(), true)?;
    setns(to, CloneFlags::CLONE_NEWNS)?;
    attach(tree.as_fd(), make(&mount.target_path, directory)?.as_fd())
}

/// Opens `path` in the root of the namespace this thread is in.
fn look_up(path: &Path) -> io::Result<OwnedFd> {
    let root = open("/", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let confined = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    Ok(open_within(root, path, OFlag::O_PATH, confined)?)
}

/// The same, and makes what is missing on the way.
fn make(path: &Path, directory: bool) -> io::Result<OwnedFd> {
    let mut place = PathBuf::from("/");
    let names: Vec<_> = path.components().filter(|name| matches!(name, Component::Normal(_))).collect();
    let mut at = look_up(&place)?;
    for (index, name) in names.iter().enumerate() {
        place.push(name);
        at = match look_up(&place) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {
                let name = name.as_os_str();
                if directory || index + 1 < names.len() {
                    mkdirat(&at, name, Mode::from_bits_truncate(0o755))?;
                } else {
                    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
                    openat(&at, name, flags, Mode::from_bits_truncate(0o644))?;
                }
                look_up(&place)?
            }
            found => found?,
        };
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_its_place_alone() {
        let table = "22 1 0:21 / /proc rw - proc proc rw\n30 22 0:5 / /a\\040b rw - tmpfs /data rw\n";
        assert!(has_mount(table, Path::new("/proc")) && has_mount(table, Path::new("/a b")));
        assert!(!has_mount(table, Path::new("/data")) && !has_mount(table, Path::new("/a")));
    }
}
