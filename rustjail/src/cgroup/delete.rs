//! Removing a group, those a workload made below it, and those above that were made only to hold it.

use std::{ffi::OsString, path::Path};

use super::{
    Cgroup, CgroupError, CgroupPath, Hierarchies,
    dir::Dir,
    parents,
    walk::{Visitor, walk},
};

impl Cgroup {
    /// Removes the group, those below it, and those above it that [`Cgroup::create`] made and nobody uses;
    /// fails with [`CgroupError::Busy`] while a process is left. Repeating it is harmless.
    pub fn delete(&self) -> Result<(), CgroupError> {
        self.members().try_for_each(|member| remove(&member.hierarchy.root, self.path()))
    }

    /// [`Cgroup::delete`] for a group that can no longer be opened, because a part of its trees has lost it.
    pub fn remove(hierarchies: &Hierarchies, path: &CgroupPath) -> Result<(), CgroupError> {
        hierarchies.all().try_for_each(|hierarchy| remove(&hierarchy.root, path.as_path()))
    }
}

fn remove(root: &Dir, path: &Path) -> Result<(), CgroupError> {
    match root.remove(path) {
        // The usual case, nothing below, costs one call; processes and groups below both mean EBUSY.
        Err(CgroupError::Busy { .. }) => {
            walk(root.child(path)?, &mut Remove)?;
            root.remove(path)?;
        }
        done => done?,
    }
    parents::remove_above(root, path)
}

struct Remove;

impl Visitor for Remove {
    fn leave(&mut self, parent: &Dir, name: &OsString) -> Result<(), CgroupError> {
        parent.remove(name)
    }
}
