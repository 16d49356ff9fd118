//! The container's view of the control groups.
//!
//! With a cgroup namespace, which is made before this, a new mount of the file system shows the container's
//! group as its root. (The order matters for speed too: mounting cgroup2 from the initial cgroup namespace
//! takes 18 ms on Linux 6.18, from another 0.1 ms.) Without one, the container's own directory is bound from
//! the host's mount.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, openat},
    sys::stat::{Mode, mkdirat},
    unistd::symlinkat,
};

use super::{mounts, proc::Proc, step::At};
use crate::{
    plan::{CgroupHierarchy, CgroupView, FileSystem, FsOption, Mount, MountKind, Root},
    sync::StepError,
    sys::mount::{self, Attributes},
};

/// Whether a mount of `root` depends on which groups the process is in.
pub(super) fn needs_own_path(root: &Root) -> bool {
    root.mounts.iter().any(|mount| match &mount.kind {
        MountKind::Cgroup(CgroupView::UnifiedBind(_)) => true,
        MountKind::Cgroup(CgroupView::Legacy { namespaced, .. }) => !namespaced,
        _ => false,
    })
}

/// Mounts `view` onto `target`.
pub(super) fn mount(
    view: &CgroupView,
    mount: &Mount,
    target: BorrowedFd<'_>,
    proc: Option<&Proc>,
) -> Result<(), StepError> {
    match view {
        CgroupView::Unified => {
            let made =
                mounts::create(&file_system("cgroup2", Vec::new()), mount.attributes.set, &mount.target)?;
            mount::attach(made.as_fd(), target).at("mount onto", &mount.target)
        }
        CgroupView::UnifiedBind(host) => {
            let own = own_groups(proc)?;
            let made = bind(host, own_path(&own, &[]), mount)?;
            mount::attach(made.as_fd(), target).at("bind onto", &mount.target)
        }
        CgroupView::Legacy { namespaced, hierarchies } => {
            let own = if *namespaced { String::new() } else { own_groups(proc)? };
            legacy(hierarchies, (!namespaced).then_some(own.as_str()), mount, target)
        }
    }
}

/// A tmpfs with a directory for each hierarchy, and links for the controllers that share one.
fn legacy(
    hierarchies: &[CgroupHierarchy],
    own: Option<&str>,
    mount: &Mount,
    target: BorrowedFd<'_>,
) -> Result<(), StepError> {
    let options = vec![FsOption::Value("mode".into(), "755".into())];
    let writable = mount.attributes.set & !libc::MOUNT_ATTR_RDONLY;
    let base = mounts::create(&file_system("tmpfs", options), writable, &mount.target)?;
    mount::attach(base.as_fd(), target).at("mount onto", &mount.target)?;
    for hierarchy in hierarchies {
        let shown = mount.target.join(&hierarchy.name);
        let made = match own {
            Some(own) => bind(&hierarchy.host, own_path(own, &hierarchy.controllers), mount)?,
            None => mounts::create(&controllers(hierarchy), mount.attributes.set, &shown)?,
        };
        mkdirat(&base, hierarchy.name.as_str(), Mode::from_bits_retain(0o755)).at("make", &shown)?;
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let place = openat(&base, hierarchy.name.as_str(), flags, Mode::empty()).at("open", &shown)?;
        mount::attach(made.as_fd(), place.as_fd()).at("mount onto", &shown)?;
        for controller in hierarchy.controllers.iter().filter(|name| shared(name, hierarchy)) {
            symlinkat(hierarchy.name.as_str(), &base, controller.as_str()).at("link", &shown)?;
        }
    }
    let rest = Attributes { set: mount.attributes.set, ..Attributes::default() };
    mounts::change(base.as_fd(), rest, false, &mount.target)
}

fn shared(controller: &str, hierarchy: &CgroupHierarchy) -> bool {
    hierarchy.name != controller && !controller.starts_with("name=")
}

fn controllers(hierarchy: &CgroupHierarchy) -> FileSystem {
    let option = |controller: &String| match controller.strip_prefix("name=") {
        Some(name) => vec![FsOption::Flag("none".into()), FsOption::Value("name".into(), name.into())],
        None => vec![FsOption::Flag(controller.clone())],
    };
    file_system("cgroup", hierarchy.controllers.iter().flat_map(option).collect())
}

fn file_system(kind: &str, options: Vec<FsOption>) -> FileSystem {
    FileSystem { kind: kind.into(), source: Some("cgroup".into()), options, copy_up: false }
}

/// A detached copy of the container's own directory in the hierarchy at `host`.
fn bind(host: &Path, own: PathBuf, mount: &Mount) -> Result<OwnedFd, StepError> {
    let own = host.join(own);
    let made = mount::clone_tree_at(&own, false).at("open the container's cgroup", &own)?;
    let attributes =
        Attributes { set: mount.attributes.set, clear: mount.attributes.clear, propagation: libc::MS_SLAVE };
    mounts::change(made.as_fd(), attributes, false, &mount.target)?;
    Ok(made)
}

fn own_groups(proc: Option<&Proc>) -> Result<String, StepError> {
    proc.ok_or(std::io::ErrorKind::NotFound).at("find the private", "procfs")?.read("self/cgroup")
}

/// The path, relative to its hierarchy's root, of the group that `/proc/self/cgroup` names for
/// `controllers`; none is the unified hierarchy.
fn own_path(groups: &str, controllers: &[String]) -> PathBuf {
    let wanted = controllers.join(",");
    let path = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        let names_match = names == wanted
            || (!controllers.is_empty()
                && names.split(',').all(|name| controllers.iter().any(|c| c == name)));
        names_match.then_some(path)
    });
    path.unwrap_or("/").trim_start_matches('/').into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_by_its_controllers() {
        let groups = "12:cpuacct,cpu:/pod/a\n2:name=systemd:/s\n0::/unified\n";
        let names = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(own_path(groups, &names(&["cpu", "cpuacct"])), Path::new("pod/a"));
        assert_eq!(own_path(groups, &names(&["name=systemd"])), Path::new("s"));
        assert_eq!(own_path(groups, &[]), Path::new("unified"));
        assert_eq!(own_path(groups, &names(&["memory"])), Path::new(""));
    }
}
