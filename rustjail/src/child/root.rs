//! The container's file tree: built out of the host's sight-line, then made `/`.
//!
//! The tree is attached over `/` and stays addressed by its descriptor, so the host's paths keep working
//! until pivot_root, and no path of the tree is ever looked up from the host's side.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    mount::{MntFlags, umount2},
    sys::stat::fstat,
    unistd,
};

use super::{
    devices, masks, mounts, open_directory,
    proc::Proc,
    step::At,
    terminal::{self, Terminal},
    tree::{Links, Missing, Tree},
};
use crate::{
    plan::{Plan, Root, Stdio},
    sync::StepError,
    sys::mount::{self, Attributes},
};

/// What of the container's tree the last steps need.
#[derive(Debug)]
pub(super) struct Place {
    /// The working directory.
    pub(super) cwd: OwnedFd,
    /// The terminal, with one.
    pub(super) terminal: Option<Terminal>,
}

/// A tree with everything in it that a container needs, not yet `/`.
#[derive(Debug)]
pub(super) struct Built<'fd> {
    host: OwnedFd,
    tree: Tree<'fd>,
    terminal: Option<Terminal>,
}

/// Builds the tree of a new container; `enter_groups` comes before the first mount that depends on its groups.
pub(super) fn build<'fd>(
    plan: &Plan,
    root: &Root,
    fds: &[BorrowedFd<'fd>],
    proc: Option<&Proc>,
    enter_groups: &mut dyn FnMut() -> Result<(), StepError>,
) -> Result<Built<'fd>, StepError> {
    let host = open_directory("/")?;
    mount::set_attributes(host.as_fd(), SLAVE, true).at("keep this mount namespace's mounts from", "/")?;
    let tree = root.tree.of(fds).at("find the root file system", "")?;
    // A shared one cannot be pivoted to, and would hand the container's mounts back to the host's copy of it.
    mount::set_attributes(tree, SLAVE, true).at("set the propagation of", "the root file system")?;
    attach(tree, host.as_fd(), root.place.as_deref())?;

    let mut tree = Tree::new(tree);
    for mount in &root.mounts {
        if mounts::depends_on_groups(mount) {
            enter_groups()?;
        }
        mounts::make(mount, &mut tree, fds, proc)?;
    }
    devices::make(root, &tree)?;
    let terminal = open_terminal(plan, &tree)?;
    if let (true, Some(terminal)) = (root.console, &terminal) {
        terminal::bind_console(terminal, &tree)?;
    }
    for (path, value) in &root.sysctls {
        proc.ok_or(std::io::ErrorKind::NotFound)
            .at("find the private", "procfs")?
            .write(Path::new("sys").join(path), value)?;
    }
    Ok(Built { host, tree, terminal })
}

/// Puts the tree where it can be seen: over the host's, or at the place it is a copy of, for hooks.
fn attach(tree: BorrowedFd<'_>, host: BorrowedFd<'_>, place: Option<&Path>) -> Result<(), StepError> {
    let Some(path) = place else {
        return mount::attach(tree, host).at("attach", "the root file system");
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let found = Tree::new(host).open(path, flags, Links::Refuse).at("find the root file system at", path)?;
    let (is, should) = (fstat(&found).at("look at", path)?, fstat(tree).at("look at", path)?);
    if (is.st_dev, is.st_ino) != (should.st_dev, should.st_ino) {
        return Err(Errno::ESTALE).at("find again the root file system at", path);
    }
    mount::attach(tree, found.as_fd()).at("attach the root file system at", path)
}

impl Built<'_> {
    /// Covers what is not for the container, and makes the tree `/`.
    pub(super) fn close_and_switch(self, root: &Root, cwd: &Path) -> Result<Place, StepError> {
        let Self { host, tree, terminal } = self;
        masks::hide(&root.masked, &tree)?;
        masks::protect(&root.readonly_paths, &tree)?;
        // From the root, as the program will see it: the kept mounts may themselves be covered by now.
        let cwd = Tree::new(tree.root).ensure(cwd, Missing::Directory, Links::Follow)?;
        if root.readonly_dev {
            let dev = tree.open("/dev", OFlag::O_PATH, Links::Refuse).at("open", "/dev")?;
            mount::set_attributes(dev.as_fd(), READ_ONLY, false).at("make read-only", "/dev")?;
        }
        if root.readonly {
            mount::set_attributes(tree.root, READ_ONLY, false).at("make read-only", "/")?;
        }
        match root.no_pivot {
            true => hide_host(&host, tree.root)?,
            false => switch(host, tree.root)?,
        }
        if let Some(propagation) = root.propagation {
            let attributes = Attributes { propagation: propagation.kind, ..Attributes::default() };
            mount::set_attributes(tree.root, attributes, propagation.recursive)
                .at("set the propagation of", "/")?;
        }
        Ok(Place { cwd, terminal })
    }
}

const SLAVE: Attributes = Attributes { set: 0, clear: 0, propagation: libc::MS_SLAVE };
const READ_ONLY: Attributes = Attributes { set: libc::MOUNT_ATTR_RDONLY, clear: 0, propagation: 0 };

/// Finds the places of a container that was joined.
pub(super) fn joined(plan: &Plan) -> Result<Place, StepError> {
    let root = open_directory("/")?;
    let tree = Tree::new(root.as_fd());
    let cwd = tree
        .open(&plan.process.cwd, OFlag::O_PATH | OFlag::O_DIRECTORY, Links::Follow)
        .at("open the working directory", &plan.process.cwd)?;
    Ok(Place { cwd, terminal: open_terminal(plan, &tree)? })
}

fn open_terminal(plan: &Plan, tree: &Tree<'_>) -> Result<Option<Terminal>, StepError> {
    match &plan.process.stdio {
        Stdio::Terminal(size) => Terminal::open(tree, *size).map(Some),
        Stdio::Streams(_) => Ok(None),
    }
}

/// Leaves the host's tree where it is, beneath the mount that is `/` by now: every lookup of `/` ends in the
/// latter. Its proc and sysfs go first, because the kernel lets a user namespace mount others like them.
fn hide_host(host: &OwnedFd, tree: BorrowedFd<'_>) -> Result<(), StepError> {
    unistd::fchdir(host).at("enter", "the old root")?;
    for name in ["proc", "sys"] {
        match umount2(name, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // Not a mount.
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(errno) => return Err(errno).at("unmount the host's", name),
        }
    }
    unistd::fchdir(tree).at("enter", "the root file system")?;
    unistd::chroot(".").at("chroot to", "the root file system")?;
    unistd::chdir("/").at("enter", "/")
}

/// Exchanges the host's tree for the container's and lets go of the former. `pivot_root(".", ".")` stacks
/// the old root on the new one, so it needs no directory in the image.
fn switch(host: OwnedFd, tree: BorrowedFd<'_>) -> Result<(), StepError> {
    unistd::fchdir(tree).at("enter", "the root file system")?;
    // EINVAL here means that the process's root is the kernel's initial rootfs, which cannot be moved: the
    // guest's init has to make / a mount of its own before it starts anything.
    unistd::pivot_root(".", ".").at("pivot_root to", "the root file system")?;
    unistd::fchdir(&host).at("enter", "the old root")?;
    umount2(".", MntFlags::MNT_DETACH).at("unmount", "the old root")?;
    unistd::chdir("/").at("enter", "/")
}
