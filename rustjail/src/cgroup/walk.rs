//! Walking the groups a workload made below its own.
//!
//! The workload decides how deep and how wide they are, so the walk neither recurses nor holds a descriptor
//! for each level: it goes down by name and up by `..`, and remembers only names.

use std::ffi::OsString;

use super::{CgroupError, dir::Dir};

/// What a walk does at a group.
pub(super) trait Visitor {
    /// Called before the groups below `dir`.
    fn enter(&mut self, _dir: &Dir) -> Result<(), CgroupError> {
        Ok(())
    }

    /// Called after the groups below `name`, a group in `parent`.
    fn leave(&mut self, _parent: &Dir, _name: &OsString) -> Result<(), CgroupError> {
        Ok(())
    }
}

/// Visits `top` and every group below it, except that nobody leaves `top`. Groups that vanish meanwhile are
/// passed over.
pub(super) fn walk(top: Dir, visitor: &mut impl Visitor) -> Result<(), CgroupError> {
    visitor.enter(&top)?;
    // For each level from `top` to `here`: the name of the group that is being visited, and its siblings.
    let mut levels = vec![(None, top.subgroups()?)];
    let mut here = top;
    while let Some((visiting, left)) = levels.last_mut() {
        if let Some(name) = left.pop() {
            let Some(child) = unless_gone(here.child(&name))? else {
                continue;
            };
            let Some(names) = unless_gone(child.subgroups())? else {
                continue;
            };
            visitor.enter(&child)?;
            here = child;
            *visiting = Some(name);
            levels.push((None, names));
            continue;
        }
        levels.pop();
        if let Some((Some(name), _)) = levels.last() {
            here = here.parent()?;
            visitor.leave(&here, name)?;
        }
    }
    Ok(())
}

fn unless_gone<T>(result: Result<T, CgroupError>) -> Result<Option<T>, CgroupError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ENODEV)) => Ok(None),
        Err(error) => Err(error),
    }
}
