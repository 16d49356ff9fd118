//! Removing a group and those a workload made below it.

use std::ffi::OsString;

use super::{
    Cgroup, CgroupError,
    dir::Dir,
    walk::{Visitor, walk},
};

impl Cgroup {
    /// Removes the group and those below it; fails with [`CgroupError::Busy`] while a process is left.
    /// Repeating it is harmless.
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
