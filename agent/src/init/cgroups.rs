//! The control group tree, of the version that was asked for and the kernel has.

use std::fs;

use nix::mount::{MsFlags, mount as mount_call};

use super::mounts::{BootError, Result, directory, is_mount_point, mount_once};

const ROOT: &str = "/sys/fs/cgroup";
const FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// Mounts it, unless the root file system brought one.
pub(super) fn mount(v1: bool) -> Result<()> {
    if is_mount_point(ROOT) {
        return Ok(());
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = |kind: &str| known.lines().any(|line| line.split_whitespace().last() == Some(kind));
    if known("cgroup2") && !(v1 && known("cgroup")) {
        return unified(ROOT);
    }
    controllers()?;
    // Beside v1 controllers this tree still kills and counts whole groups; see docs/architecture.md.
    if known("cgroup2") { unified(&format!("{ROOT}/unified")) } else { Ok(()) }
}

fn unified(target: &str) -> Result<()> {
    // memory_recursiveprot came with 5.7, nsdelegate with 4.13.
    mount_once("cgroup2", target, FLAGS, "nsdelegate,memory_recursiveprot")
        .or_else(|_| mount_once("cgroup2", target, FLAGS, "nsdelegate"))
        .or_else(|_| mount_once("cgroup2", target, FLAGS, ""))
}

/// One hierarchy for each controller that is enabled.
fn controllers() -> Result<()> {
    mount_once("tmpfs", ROOT, FLAGS, "mode=755")?;
    let path = "/proc/cgroups";
    let table = fs::read_to_string(path).map_err(|source| BootError::Path {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let mut result = Ok(());
    for name in enabled(&table) {
        let target = format!("{ROOT}/{name}");
        let mounted = directory(&target).and_then(|()| {
            mount_call(Some("cgroup"), target.as_str(), Some("cgroup"), FLAGS, Some(name)).map_err(|errno| {
                BootError::Mount { kind: "cgroup", target, options: "one controller", source: errno.into() }
            })
        });
        // The other controllers are worth having all the same.
        result = result.and(mounted);
    }
    result
}

fn enabled(table: &str) -> impl Iterator<Item = &str> {
    table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut columns = line.split_whitespace();
        let name = columns.next()?;
        (columns.nth(2)? == "1").then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_enabled_controllers_are_mounted() {
        let table =
            "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t2\t9\t1\nhugetlb\t0\t1\t0\npids\t3\t4\t1\n";
        assert_eq!(enabled(table).collect::<Vec<_>>(), ["cpu", "pids"]);
        assert_eq!(enabled("garbage\n\nx y\n").count(), 0);
    }
}
