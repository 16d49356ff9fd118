//! The mounts of a container: each is made detached, given its attributes, and only then put in place.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{errno::Errno, fcntl::readlinkat, unistd::symlinkat};

use super::{
    cgroupfs, copy_up,
    proc::Proc,
    step::At,
    tree::{Links, Missing, Tree},
};
use crate::{
    plan::{FileSystem, FsOption, Mount, MountKind},
    sync::StepError,
    sys::mount::{self, Attributes},
};

/// Makes one mount and everything its target lacks.
pub(super) fn make(
    mount: &Mount,
    tree: &mut Tree<'_>,
    fds: &[BorrowedFd<'_>],
    proc: Option<&Proc>,
) -> Result<(), StepError> {
    let links = links_allowed_in(mount);
    match &mount.kind {
        MountKind::Bind(bind) => {
            let source = bind.tree.of(fds).at("find the source of", &mount.target)?;
            let missing = if bind.directory { Missing::Directory } else { Missing::File };
            change(source, mount.recursive, true, &mount.target)?;
            change(source, mount.attributes, false, &mount.target)?;
            let target = tree.ensure(&mount.target, missing, links)?;
            mount::attach(source, target.as_fd()).at("bind onto", &mount.target)?;
            // The links in a host's /dev mean other places of the root.
            let is_kept = ["/proc", "/sys"].iter().any(|place| Path::new(place) == mount.target);
            let kept = is_kept.then(|| source.try_clone_to_owned()).transpose();
            kept.and_then(|source| tree.keep(&mount.target, source)).at("look at the mount on", &mount.target)
        }
        MountKind::FileSystem(file_system) => {
            let target = tree.ensure(&mount.target, Missing::Directory, links)?;
            let later = if file_system.copy_up { libc::MOUNT_ATTR_RDONLY } else { 0 };
            let made = create(file_system, mount.attributes.set & !later, &mount.target)?;
            if file_system.copy_up {
                copy_up::copy(target.as_fd(), made.as_fd())
                    .at("copy into a tmpfs what is in", &mount.target)?;
            }
            let rest = Attributes {
                set: mount.attributes.set & later,
                propagation: mount.attributes.propagation,
                ..Attributes::default()
            };
            change(made.as_fd(), rest, false, &mount.target)?;
            change(made.as_fd(), mount.recursive, true, &mount.target)?;
            mount::attach(made.as_fd(), target.as_fd()).at("mount onto", &mount.target)?;
            // So do those in a copy of the image's.
            let kept = (!file_system.copy_up).then_some(made);
            tree.keep(&mount.target, kept).at("look at the mount on", &mount.target)
        }
        MountKind::Cgroup(view) => {
            let target = tree.ensure(&mount.target, Missing::Directory, links)?;
            cgroupfs::mount(view, mount, target.as_fd(), proc)
        }
        MountKind::Link(says) => make_link(&mount.target, says, tree),
    }
}

/// Whether `mount` shows the groups the process is in, or fills memory that counts as theirs.
pub(super) fn depends_on_groups(mount: &Mount) -> bool {
    match &mount.kind {
        MountKind::Cgroup(_) => true,
        MountKind::FileSystem(file_system) => file_system.copy_up,
        MountKind::Bind(_) | MountKind::Link(_) => false,
    }
}

/// A process trusts what it finds in these to be the kernel's; a link there could make it the image's
/// (CVE-2019-19921), or the mount land where the image wants it.
fn links_allowed_in(mount: &Mount) -> Links {
    let guarded = ["/proc", "/sys", "/dev"];
    match guarded.iter().any(|path| Path::new(path) == mount.target) {
        true => Links::Refuse,
        false if mount.nofollow => Links::FollowAbove,
        false => Links::Follow,
    }
}

/// A link that is there already has to say the same: what an image has is not taken from it.
fn make_link(path: &Path, says: &Path, tree: &Tree<'_>) -> Result<(), StepError> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().map(Path::new).unwrap_or(path);
    let directory = tree.ensure(parent, Missing::Directory, Links::Follow)?;
    let made = match symlinkat(says, &directory, name) {
        Err(Errno::EEXIST) if readlinkat(&directory, name).is_ok_and(|found| found == *says) => Ok(()),
        result => result,
    };
    made.at("make the symbolic link", path)
}

/// A detached mount of a new file system.
pub(super) fn create(file_system: &FileSystem, attributes: u64, target: &Path) -> Result<OwnedFd, StepError> {
    let kind = &file_system.kind;
    let context = mount::FileSystem::open(kind).at(&format!("make a {kind} for"), target)?;
    if let Some(source) = &file_system.source {
        context.set("source", source).at(&format!("use {source} as {kind} for"), target)?;
    }
    for option in &file_system.options {
        match option {
            FsOption::Flag(key) => context.flag(key).at(&format!("give {kind} the option {key} for"), target),
            FsOption::Value(key, value) => {
                context.set(key, value).at(&format!("give {kind} the option {key}={value} for"), target)
            }
        }?;
    }
    context.mount(attributes).at(&format!("make a {kind} for"), target)
}

/// Applies `attributes` unless there is nothing to apply.
pub(super) fn change(
    mount: BorrowedFd<'_>,
    attributes: Attributes,
    recursive: bool,
    target: &Path,
) -> Result<(), StepError> {
    if attributes == Attributes::default() {
        return Ok(());
    }
    mount::set_attributes(mount, attributes, recursive).at("set the attributes of the mount for", target)
}
