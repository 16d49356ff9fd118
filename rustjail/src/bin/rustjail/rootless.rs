//! A user without privileges.
//!
//! Only who is root of a user namespace may make mounts, and the compiler makes some. So the command itself enters the
//! container's user namespace, with mounts of its own, and goes on as anybody with privileges over what is in there;
//! to the rest of the program the container then has no user namespace. A later `exec` enters it in the same way.
//!
//! The ids: a user may map itself, and nobody else, by writing the maps. More is the business of newuidmap(1) and
//! newgidmap(1), which /etc/subuid and /etc/subgid tell what a user may have. They are run by a process that stays
//! outside, since inside they would have no privileges either.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    process::Command,
};

use nix::{
    sched::{CloneFlags, setns, unshare},
    unistd::{getegid, geteuid, getpid},
};
use oci_spec::runtime::{LinuxIdMapping, LinuxNamespaceType, Spec};
use rustjail::{
    compile::NamespaceKind,
    plan::Plan,
    sys::{
        clone::{Cloned, clone3},
        pidfd::{self, Exit},
        process::exit_now,
    },
};

use crate::error::Error;

/// What this process has become, which is told the plans that are made then.
#[derive(Debug, Default)]
pub struct Inside {
    /// Nobody may change the supplementary groups there.
    keeps_groups: bool,
    /// An exec's: the kinds of namespace that are the container's own.
    joins: Option<u64>,
}

impl Inside {
    /// Leaves out of `plan` what was done, and what may not be.
    pub fn adapt(&self, plan: &mut Plan) {
        plan.process.identity.keep_groups = self.keeps_groups && plan.process.identity.groups.is_empty();
        if let Some(kinds) = self.joins {
            plan.namespaces.pid = None;
            plan.namespaces.joins.iter_mut().for_each(|join| join.kinds &= kinds);
        }
    }
}

fn is_needed() -> bool {
    !geteuid().is_root()
}

/// Enters the user namespace that a new container with `spec` is to have, which is then taken out of it.
pub fn enter_new(spec: &mut Spec) -> Result<Inside, Error> {
    if !is_needed() {
        return Ok(Inside::default());
    }
    let linux = spec.linux_mut().as_mut().ok_or_else(no_namespace)?;
    let user = linux.namespaces_mut().as_mut().and_then(|namespaces| {
        let index = namespaces.iter().position(|namespace| namespace.typ() == LinuxNamespaceType::User)?;
        Some(namespaces.remove(index))
    });
    let uids = linux.uid_mappings_mut().take().unwrap_or_default();
    let gids = linux.gid_mappings_mut().take().unwrap_or_default();
    match user.ok_or_else(no_namespace)?.path() {
        Some(path) => {
            let namespace = File::open(path).map_err(Error::io("open", path))?;
            setns(namespace, CloneFlags::CLONE_NEWUSER).map_err(failed("enter the user namespace"))?;
            unshare(CloneFlags::CLONE_NEWNS).map_err(failed("make a mount namespace"))?;
        }
        None if is_own(&uids, geteuid().as_raw()) && is_own(&gids, getegid().as_raw()) => {
            leave_the_machines()?;
            // The kernel's condition for a group map of a user's own: with other groups a user may have less rights.
            write("setgroups", "deny")?;
            write("uid_map", &lines(&uids).join("\n"))?;
            write("gid_map", &lines(&gids).join("\n"))?;
        }
        None => map_by_others(&uids, &gids)?,
    }
    Ok(Inside { keeps_groups: keeps_groups(), joins: None })
}

/// Enters the user namespace of the container's `init` and the PID namespace for children.
pub fn enter(spec: &mut Spec, init: BorrowedFd<'_>) -> Result<Inside, Error> {
    if !is_needed() {
        return Ok(Inside::default());
    }
    setns(init, CloneFlags::CLONE_NEWUSER).map_err(failed("enter the container's user namespace"))?;
    let namespaces = spec.linux_mut().as_mut().and_then(|linux| linux.namespaces_mut().as_mut());
    let mut joins = 0;
    if let Some(namespaces) = namespaces {
        namespaces.retain(|namespace| namespace.typ() != LinuxNamespaceType::User);
        joins = namespaces.iter().fold(0, |kinds, one| kinds | NamespaceKind::from(one.typ()).flag());
    }
    let pid = NamespaceKind::Pid.flag();
    if joins & pid != 0 {
        setns(init, CloneFlags::CLONE_NEWPID).map_err(failed("enter the container's PID namespace"))?;
    }
    Ok(Inside { keeps_groups: keeps_groups(), joins: Some(joins & !pid) })
}

fn leave_the_machines() -> Result<(), Error> {
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(failed("make a user namespace"))
}

/// A process outside waits until there is a namespace to be mapped.
fn map_by_others(uids: &[LinuxIdMapping], gids: &[LinuxIdMapping]) -> Result<(), Error> {
    const STEP: &str = "map the container's ids";
    let own = getpid();
    let (mut wait, mut go) = io::pipe().map_err(failed(STEP))?;
    match clone3(0, None, false).map_err(failed(STEP))? {
        Cloned::Child => {
            drop(go);
            match wait.read(&mut [0; 1]) {
                Ok(1) => exit_now(map_from_outside(&own.to_string(), uids, gids)),
                // The namespace was not made, which its maker says.
                _ => exit_now(libc::ECANCELED),
            }
        }
        Cloned::Parent(_, helper) => {
            drop(wait);
            leave_the_machines()?;
            go.write_all(&[1]).map_err(failed(STEP))?;
            match pidfd::wait(helper.as_fd()).map_err(failed(STEP))? {
                Exit::Code(0) => Ok(()),
                Exit::Code(errno) => Err(failed(STEP)(io::Error::from_raw_os_error(errno))),
                Exit::Signal(_) => Err(failed(STEP)(io::Error::from(io::ErrorKind::Interrupted))),
            }
        }
    }
}

/// An errno, 0 for success.
fn map_from_outside(pid: &str, uids: &[LinuxIdMapping], gids: &[LinuxIdMapping]) -> i32 {
    for (program, map) in [("newuidmap", uids), ("newgidmap", gids)] {
        let words = lines(map).join(" ");
        match Command::new(program).arg(pid).args(words.split(' ')).status() {
            Ok(status) if status.success() => {}
            // It has told why, on standard error.
            Ok(_) => return libc::EPERM,
            Err(error) => return error.raw_os_error().unwrap_or(libc::EINVAL),
        }
    }
    0
}

fn is_own(map: &[LinuxIdMapping], id: u32) -> bool {
    matches!(map, [only] if only.host_id() == id && only.size() == 1)
}

fn lines(map: &[LinuxIdMapping]) -> Vec<String> {
    map.iter().map(|id| format!("{} {} {}", id.container_id(), id.host_id(), id.size())).collect()
}

fn write(file: &str, text: &str) -> Result<(), Error> {
    let path = format!("/proc/self/{file}");
    fs::write(&path, text).map_err(Error::io("write", &path))
}

fn keeps_groups() -> bool {
    fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny")
}

fn no_namespace() -> Error {
    failed("make a container without a user namespace")(io::Error::from_raw_os_error(libc::EPERM))
}

fn failed<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Unprivileged { step, source: source.into() }
}
