//! Handing the cgroup2 controllers down to a group.

use std::path::Path;

use super::super::{
    CgroupError,
    dir::Dir,
    hierarchies::{Hierarchy, words},
};

/// Enables for the group `path` every controller its root offers, level by level from the root.
///
/// A controller that some level refuses is left out: only a limit that needs it makes that an error. The
/// usual reason is a level that holds processes, which the kernel forbids for all but the real root.
pub(in super::super) fn enable_controllers(hierarchy: &Hierarchy, path: &Path) -> Result<(), CgroupError> {
    // Writing to subtree_control waits for groups that are being removed, so it is done only when needed.
    let offered = words(&hierarchy.root.child(path)?.read("cgroup.controllers")?);
    if hierarchy.controllers.iter().all(|controller| offered.contains(controller)) {
        return Ok(());
    }
    hand_down(&hierarchy.root)?;
    let mut above: Vec<&Path> =
        path.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
    above.reverse();
    above.into_iter().try_for_each(|path| hand_down(&hierarchy.root.child(path)?))
}

fn hand_down(dir: &Dir) -> Result<(), CgroupError> {
    let enabled = words(&dir.read("cgroup.subtree_control")?);
    let available = words(&dir.read("cgroup.controllers")?);
    let missing: Vec<String> = available
        .iter()
        .filter(|controller| !enabled.contains(controller))
        .map(|controller| format!("+{controller}"))
        .collect();
    if missing.is_empty() || dir.write("cgroup.subtree_control", &missing.join(" ")).is_ok() {
        return Ok(());
    }
    // One refusal refuses the whole line.
    for controller in missing {
        let _ = dir.write("cgroup.subtree_control", &controller);
    }
    Ok(())
}
