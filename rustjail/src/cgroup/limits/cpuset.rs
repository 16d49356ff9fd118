//! Which CPUs and memory nodes a group may use.

use oci_spec::runtime::LinuxCpu;

use super::super::{Cgroup, CgroupError, Controller, dir::Dir, parse};

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

impl Cgroup {
    /// Gives the group CPUs that came after it was made: those of `cpus`, without a list all there are. v2 does
    /// the latter by itself; v1 fixed the lists of the group and of those above it when they were made.
    pub fn widen_cpuset(&self, cpus: Option<&str>) -> Result<(), CgroupError> {
        let cpus = cpus.filter(|list| !parse::is_empty_set(list));
        let [file, _] = FILES;
        match (self.find("cpuset"), cpus) {
            (None, _) | (Some(Controller::V2(_)), None) => Ok(()),
            (Some(Controller::V2(dir)), Some(list)) => dir.write(file, list),
            (Some(Controller::V1(dir)), list) => {
                let mut above = Vec::new();
                let mut group = dir.try_clone()?;
                for _ in 0..self.path().components().count().saturating_sub(1) {
                    group = group.parent()?;
                    above.push(group.try_clone()?);
                }
                let all = group.parent()?.read(file)?;
                let all = all.trim_end();
                above.iter().rev().try_for_each(|group| group.write(file, all))?;
                dir.write(file, list.unwrap_or(all))
            }
        }
    }
}

/// Fills an empty v1 cpuset from the group above, which is `depth` levels below the root, and those above it.
pub(super) fn inherit(dir: &Dir, depth: usize) -> Result<(), CgroupError> {
    // From the group up to the first that has both lists, then down again.
    let mut chain = vec![(dir.try_clone()?, lists(dir)?)];
    while let Some((group, own)) = chain.last().filter(|_| chain.len() <= depth) {
        if !own.iter().any(|list| parse::is_empty_set(list)) {
            break;
        }
        let above = group.parent()?;
        let lists = lists(&above)?;
        chain.push((above, lists));
    }
    let Some((_, mut above)) = chain.pop() else { return Ok(()) };
    for (group, own) in chain.into_iter().rev() {
        for ((file, above), own) in FILES.into_iter().zip(&mut above).zip(own) {
            if parse::is_empty_set(&own) {
                group.write(file, above.trim_end())?;
            } else {
                *above = own;
            }
        }
    }
    Ok(())
}

fn lists(dir: &Dir) -> Result<[String; 2], CgroupError> {
    Ok([dir.read(FILES[0])?, dir.read(FILES[1])?])
}
