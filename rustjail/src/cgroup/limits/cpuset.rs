//! Which CPUs and memory nodes a group may use.

use oci_spec::runtime::LinuxCpu;

use super::super::{Cgroup, CgroupError, dir::Dir, parse};

const FILES: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

pub(super) fn apply(group: &Cgroup, cpu: &LinuxCpu) -> Result<(), CgroupError> {
    for (file, list) in FILES.into_iter().zip([cpu.cpus(), cpu.mems()]) {
        if let Some(list) = list.as_deref().filter(|list| !parse::is_empty_set(list)) {
            // Both versions use the same names.
            group.controller("cpuset")?.dir().write(file, list)?;
        }
    }
    Ok(())
}

/// Fills an empty v1 cpuset from the group above, which is `depth` levels below the root, and those above it.
pub(super) fn inherit(dir: &Dir, depth: usize) -> Result<(), CgroupError> {
    // From the group up to the first that has both lists, then down again.
    let mut chain = vec![dir.try_clone()?];
    while let Some(group) = chain.last().filter(|_| chain.len() <= depth) {
        if !is_empty(group)? {
            break;
        }
        chain.push(group.parent()?);
    }
    let Some(filled) = chain.pop() else { return Ok(()) };
    for file in FILES {
        let mut above = filled.read(file)?;
        for group in chain.iter().rev() {
            let own = group.read(file)?;
            if parse::is_empty_set(&own) {
                group.write(file, above.trim_end())?;
            } else {
                above = own;
            }
        }
    }
    Ok(())
}

fn is_empty(dir: &Dir) -> Result<bool, CgroupError> {
    Ok(parse::is_empty_set(&dir.read(FILES[0])?) || parse::is_empty_set(&dir.read(FILES[1])?))
}
