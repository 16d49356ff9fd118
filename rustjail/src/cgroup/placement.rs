//! Putting a new process into a group.

use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;

use super::{
    Cgroup, CgroupError,
    dir::Dir,
    walk::{Visitor, walk},
};

/// The descriptors by which a new process is put into a cgroup: at birth where the kernel can, and by the
/// child itself where it cannot.
#[derive(Debug, Default)]
pub struct Placement {
    /// The cgroup2 directory, for CLONE_INTO_CGROUP.
    pub into: Option<OwnedFd>,
    /// The v1 `tasks` files, open for writing: the child writes "0" to each, while it has a single thread.
    /// `tasks` rather than `cgroup.procs`, which waits for an RCU grace period.
    pub tasks: Vec<OwnedFd>,
}

impl Cgroup {
    /// Fresh descriptors for one launch.
    pub fn placement(&self) -> Result<Placement, CgroupError> {
        let into = match &self.unified {
            Some(unified) => Some(inhabitable(unified.dir())?),
            None => None,
        };
        Ok(Placement { into, tasks: self.tasks()? })
    }

    /// The files by which a process enters the v1 directories.
    pub(super) fn tasks(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        self.v1.iter().map(|member| member.dir.open_file("tasks", OFlag::O_WRONLY)).collect()
    }
}

/// A group that hands controllers to groups below may hold no process itself (EBUSY). When the workload has
/// made its own group such a one, as systemd and Docker do, a process can only join one of those below:
/// `init` by the convention of those runtimes, otherwise the first that has a process.
fn inhabitable(dir: &Dir) -> Result<OwnedFd, CgroupError> {
    let delegates = dir.read_if_any("cgroup.subtree_control")?.is_some_and(|list| !list.trim().is_empty());
    if !delegates {
        return dir.try_clone_fd();
    }
    if let Ok(init) = dir.child("init") {
        return init.try_clone_fd();
    }
    let mut inhabited = Inhabited(None);
    walk(dir.try_clone()?, &mut inhabited)?;
    inhabited.0.map_or_else(|| dir.try_clone_fd(), Ok)
}

struct Inhabited(Option<OwnedFd>);

impl Visitor for Inhabited {
    fn enter(&mut self, dir: &Dir) -> Result<(), CgroupError> {
        if self.0.is_none() && dir.read_if_any("cgroup.procs")?.is_some_and(|list| !list.is_empty()) {
            self.0 = Some(dir.try_clone_fd()?);
        }
        Ok(())
    }
}
