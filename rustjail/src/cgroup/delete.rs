//! Removing a group, those a workload made below it, and those above that were made only to hold it.

use std::ffi::OsString;

use super::{
    Cgroup, CgroupError,
    dir::Dir,
    parents,
    walk::{Visitor, walk},
};

impl Cgroup {
    /// Removes the group, those below it, and those above it that [`Cgroup::create`] made and nobody uses;
    /// fails with [`CgroupError::Busy`] while a process is left. Repeating it is harmless.
    pub fn delete(&self) -> Result<(), CgroupError> {
        for member in self.members() {
            let root = &member.hierarchy.root;
            match root.remove(self.path()) {
                // The usual case, nothing below, costs one call; processes and groups below both mean EBUSY.
                Err(CgroupError::Busy { .. }) => {
                    walk(root.child(self.path())?, &mut Remove)?;
                    root.remove(self.path())?;
                }
                done => done?,
            }
            parents::remove_above(root, self.path())?;
        }
        Ok(())
    }
}

struct Remove;

impl Visitor for Remove {
    fn leave(&mut self, parent: &Dir, name: &OsString) -> Result<(), CgroupError> {
        parent.remove(name)
    }
}
