//! Mounts whose files are shown with other ids.
//!
//! The kernel takes an id map in the form of a user namespace, and a user namespace comes with a process: one
//! that does nothing but be there until its maps are written and its namespace is opened. Mapping takes
//! privileges over the file system, so it is the maker's work, done on the detached copies before any child
//! has them.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use crate::{
    plan::{IdMap, IdMapped, MountKind, Plan, Slot},
    sys::{
        clone::{Cloned, clone3},
        mount::map_ids,
        pidfd,
        process::exit_now,
    },
};

/// Maps every mount of `plan` that is to be; the error comes with the mount's target.
pub(super) fn map_all(plan: &Plan, fds: &[BorrowedFd<'_>]) -> Result<(), (String, io::Error)> {
    let mut made: Vec<(&[IdMap], &[IdMap], OwnedFd)> = Vec::new();
    for mount in plan.root.iter().flat_map(|root| &root.mounts) {
        let MountKind::Bind(bind) = &mount.kind else { continue };
        let Some(mapped) = &bind.mapped else { continue };
        map_one(mapped, bind.tree, fds, &mut made)
            .map_err(|error| (mount.target.display().to_string(), error))?;
    }
    Ok(())
}

fn map_one<'plan>(
    mapped: &'plan IdMapped,
    tree: Slot,
    fds: &[BorrowedFd<'_>],
    made: &mut Vec<(&'plan [IdMap], &'plan [IdMap], OwnedFd)>,
) -> io::Result<()> {
    let tree = tree.of(fds)?;
    if let Some(namespace) = mapped.namespace {
        return map_ids(tree, namespace.of(fds)?, mapped.recursive);
    }
    let (uids, gids) = (mapped.uids.as_slice(), mapped.gids.as_slice());
    if let Some((.., namespace)) = made.iter().find(|other| (other.0, other.1) == (uids, gids)) {
        return map_ids(tree, namespace.as_fd(), mapped.recursive);
    }
    let namespace = user_namespace(uids, gids)?;
    map_ids(tree, namespace.as_fd(), mapped.recursive)?;
    made.push((uids, gids, namespace));
    Ok(())
}

/// A user namespace that is nothing but its maps.
fn user_namespace(uids: &[IdMap], gids: &[IdMap]) -> io::Result<OwnedFd> {
    let (mut wait, go) = io::pipe()?;
    match clone3(libc::CLONE_NEWUSER as u64, None, false)? {
        Cloned::Child => {
            drop(go);
            // Ends with its maker's end of the pipe, however that comes about.
            let _ = wait.read(&mut [0; 1]);
            exit_now(0)
        }
        Cloned::Parent(pid, pidfd) => {
            let write = |file, map| fs::write(format!("/proc/{pid}/{file}"), super::lines(map));
            let namespace = write("uid_map", uids)
                .and_then(|()| write("gid_map", gids))
                .and_then(|()| File::open(format!("/proc/{pid}/ns/user")));
            drop((go, wait));
            pidfd::wait(pidfd.as_fd())?;
            Ok(namespace?.into())
        }
    }
}
