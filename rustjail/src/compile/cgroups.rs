//! How the host has its control groups mounted, for the container's view of them.

use std::{fs, io, path::PathBuf};

use super::CompileError;
use crate::plan::{CgroupHierarchy, CgroupView};

/// The view for a mount of type `cgroup` (`unified` for `cgroup2`).
pub(super) fn view(unified: bool, namespaced: bool) -> Result<CgroupView, CompileError> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(CompileError::Cgroups)?;
    choose(&mounts, unified, namespaced).ok_or_else(|| CompileError::Cgroups(io::ErrorKind::NotFound.into()))
}

/// Controllers on v1 hierarchies are shown as such: on a machine that has both, they are where limits are.
fn choose(mountinfo: &str, unified: bool, namespaced: bool) -> Option<CgroupView> {
    let mut hierarchies: Vec<CgroupHierarchy> = mountinfo.lines().filter_map(hierarchy).collect();
    hierarchies.dedup_by(|a, b| a.controllers == b.controllers);
    if !unified && !hierarchies.is_empty() {
        return Some(CgroupView::Legacy { namespaced, hierarchies });
    }
    match namespaced {
        true => Some(CgroupView::Unified),
        false => mountinfo
            .lines()
            .find_map(|line| mounted(line, "cgroup2"))
            .map(|mount| CgroupView::UnifiedBind(mount.0)),
    }
}

fn hierarchy(line: &str) -> Option<CgroupHierarchy> {
    let (host, options) = mounted(line, "cgroup")?;
    let name = host.file_name()?.to_str()?.to_owned();
    let about_the_file_system = ["rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "none"];
    let controllers = options
        .split(',')
        .filter(|option| !about_the_file_system.contains(option) && !option.starts_with("release_agent="))
        .map(str::to_owned)
        .collect();
    Some(CgroupHierarchy { name, host, controllers })
}

/// Mount point and file system options of a mountinfo line, if its file system is of the type `kind`.
fn mounted<'line>(line: &'line str, kind: &str) -> Option<(PathBuf, &'line str)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = file_system.split(' ');
    let found = fields.next()?;
    let point = mount.split(' ').nth(4)?;
    // Paths of cgroup mounts have none of the characters that are escaped here, or are not for us.
    (found == kind && !point.contains('\\')).then_some((point.into(), fields.nth(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 1 0:22 / /proc rw,nosuid - proc proc rw
30 29 0:25 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
31 29 0:26 / /sys/fs/cgroup/systemd rw,nosuid - cgroup cgroup rw,xattr,release_agent=/x,name=systemd
32 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct
";

    #[test]
    fn v1_hierarchies_are_found_with_their_controllers() {
        let Some(CgroupView::Legacy { hierarchies, namespaced: true }) = choose(HYBRID, false, true) else {
            panic!("not a v1 view")
        };
        let [systemd, cpu] = hierarchies.as_slice() else { panic!("{hierarchies:?}") };
        assert_eq!(
            (systemd.name.as_str(), systemd.controllers.as_slice()),
            ("systemd", &["name=systemd".into()][..])
        );
        assert_eq!(cpu.controllers, ["cpu", "cpuacct"]);
        assert_eq!(cpu.host, PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"));
    }

    #[test]
    fn a_machine_with_cgroup2_alone_shows_that() {
        let v2 = HYBRID.lines().nth(1).unwrap();
        assert_eq!(choose(v2, false, true), Some(CgroupView::Unified));
        assert_eq!(choose(v2, false, false), Some(CgroupView::UnifiedBind("/sys/fs/cgroup/unified".into())));
        assert_eq!(choose("", false, false), None);
    }
}
