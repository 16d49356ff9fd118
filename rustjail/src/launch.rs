//! From a plan to a running child.
//!
//! One `clone3` makes the process in its new namespaces and its cgroup2; everything else it does itself (see
//! [`crate::child`]). Two things only its maker can do. To have it born into an existing PID namespace, the
//! maker makes that namespace the one of its children, clones, and takes its own back, which the kernel
//! permits: no process in between. And the id maps of a new user namespace, with the settings that need
//! privileges outside of it, are written from here while the child waits.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::{
    sched::{CloneFlags, setns},
    sys::prctl,
};

use crate::{
    child,
    plan::{IdMap, Plan, Slot},
    sys::{
        clone::{Cloned, clone3},
        pidfd, process,
    },
};

/// A compiled plan with the descriptors its slots name.
#[derive(Debug)]
pub struct Launch {
    /// What the child does.
    pub plan: Plan,
    /// What the plan's slots refer to.
    pub fds: Vec<OwnedFd>,
}

/// The child that [`spawn`] made.
#[derive(Debug)]
pub struct Spawned {
    /// Its process id in the caller's PID namespace.
    pub pid: i32,
    /// Refers to exactly this process, whatever becomes of the number.
    pub pidfd: OwnedFd,
}

/// Whose child the new process becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// The caller's.
    Caller,
    /// The caller's parent's (CLONE_PARENT), which reaps it.
    Sibling,
}

/// Why no child was made.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The plan and the descriptors do not belong together.
    #[error("the plan refers to descriptor {slot}, but only {given} came with it")]
    Slot {
        /// Which the plan names.
        slot: u16,
        /// How many there are.
        given: usize,
    },
    /// The process to join has ended, and its PID namespace with it.
    #[error("cannot join the container's PID namespace: its init has ended ({0})")]
    PidNamespaceGone(io::Error),
    /// The PID namespace could not be joined.
    #[error("cannot join the container's PID namespace: {0}")]
    PidNamespace(io::Error),
    /// clone3 itself refused.
    #[error("cannot clone the container process: {0}")]
    Clone(io::Error),
    /// A setting of a process in a new user namespace, which has to be made from outside.
    #[error("cannot write {file} of the container process: {source}")]
    Setting {
        /// Which, as `/proc/PID` has it.
        file: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The caller's later children would be in the wrong PID namespace: it has to end.
    #[error("cannot return to the launcher's own PID namespace, so it must be replaced: {0}")]
    Stranded(io::Error),
}

/// Makes the process that `plan` describes. The caller must be single-threaded, and becomes non-dumpable:
/// the child inherits that, so there is no instant in which a process of the container could trace it or
/// open what it still holds (CVE-2016-9962).
pub fn spawn(plan: &Plan, fds: &[BorrowedFd<'_>], parent: Parent) -> Result<Spawned, SpawnError> {
    let find = |slot: Slot| slot.of(fds).map_err(|_| SpawnError::Slot { slot: slot.0, given: fds.len() });
    let into = plan.placement.into.map(find).transpose()?;
    let pid_namespace = plan.namespaces.pid.map(find).transpose()?;
    let hold = Hold::new(plan).map_err(SpawnError::Clone)?;
    prctl::set_dumpable(false).map_err(|errno| SpawnError::Clone(errno.into()))?;

    let cloned = match pid_namespace {
        None => clone3(birth_flags(plan), into, parent == Parent::Sibling).map_err(SpawnError::Clone),
        Some(namespace) => clone_into_pid_namespace(plan, namespace, into, parent),
    }?;
    match cloned {
        Cloned::Child => child::run(plan, fds, hold.map(|hold| hold.wait)),
        Cloned::Parent(pid, pidfd) => {
            if let Some(hold) = hold
                && let Err(error) = settle(plan, pid).and_then(|()| hold.release())
            {
                abandon(pidfd.as_fd(), parent);
                return Err(error);
            }
            Ok(Spawned { pid, pidfd })
        }
    }
}

/// The namespaces clone3 makes. A cgroup namespace is rooted at its creator's cgroup, which during clone3 is
/// still the caller's, so the child makes its own once it is placed.
fn birth_flags(plan: &Plan) -> u64 {
    plan.namespaces.create & !(libc::CLONE_NEWCGROUP as u64)
}

fn clone_into_pid_namespace(
    plan: &Plan,
    namespace: BorrowedFd<'_>,
    into: Option<BorrowedFd<'_>>,
    parent: Parent,
) -> Result<Cloned, SpawnError> {
    let own = pidfd::open(nix::unistd::getpid().as_raw()).map_err(SpawnError::PidNamespace)?;
    setns(namespace, CloneFlags::CLONE_NEWPID).map_err(|errno| match errno {
        nix::Error::ESRCH => SpawnError::PidNamespaceGone(errno.into()),
        _ => SpawnError::PidNamespace(errno.into()),
    })?;
    let cloned = clone3(birth_flags(plan), into, parent == Parent::Sibling);
    if matches!(cloned, Ok(Cloned::Child)) {
        return Ok(Cloned::Child);
    }
    if let Err(errno) = setns(&own, CloneFlags::CLONE_NEWPID) {
        if let Ok(Cloned::Parent(_, child)) = &cloned {
            abandon(child.as_fd(), parent);
        }
        return Err(SpawnError::Stranded(errno.into()));
    }
    cloned.map_err(|error| match error.raw_os_error() {
        // What the kernel answers to a clone into a PID namespace without an init.
        Some(libc::ENOMEM) => SpawnError::PidNamespaceGone(error),
        _ => SpawnError::Clone(error),
    })
}

/// Keeps a child in a new user namespace from going on until it is mapped.
struct Hold {
    wait: io::PipeReader,
    go: io::PipeWriter,
}

impl Hold {
    fn new(plan: &Plan) -> io::Result<Option<Self>> {
        if plan.namespaces.create & libc::CLONE_NEWUSER as u64 == 0 {
            return Ok(None);
        }
        let (wait, go) = io::pipe()?;
        Ok(Some(Self { wait, go }))
    }

    fn release(mut self) -> Result<(), SpawnError> {
        io::Write::write_all(&mut self.go, &[1]).map_err(SpawnError::Clone)
    }
}

/// What a process in a new user namespace cannot do for itself: its maps, and the limits whose raising the
/// kernel permits to the initial user namespace only.
fn settle(plan: &Plan, pid: i32) -> Result<(), SpawnError> {
    let write = |file: &'static str, text: String| {
        fs::write(format!("/proc/{pid}/{file}"), text).map_err(|source| SpawnError::Setting { file, source })
    };
    write("uid_map", lines(&plan.namespaces.uid_map))?;
    write("gid_map", lines(&plan.namespaces.gid_map))?;
    if let Some(adjustment) = plan.process.oom_score_adj {
        write("oom_score_adj", adjustment.to_string())?;
    }
    for limit in &plan.process.rlimits {
        process::set_rlimit(pid, limit.resource, limit.soft, limit.hard)
            .map_err(|source| SpawnError::Setting { file: "limits", source })?;
    }
    Ok(())
}

fn lines(map: &[IdMap]) -> String {
    map.iter().map(|id| format!("{} {} {}\n", id.inside, id.outside, id.count)).collect()
}

/// Kills a child that cannot be completed; a sibling is reaped by its own parent.
fn abandon(child: BorrowedFd<'_>, parent: Parent) {
    // Either fails only when the child is gone already, which is what is wanted.
    let _ = pidfd::signal(child, libc::SIGKILL);
    if parent == Parent::Caller {
        let _ = pidfd::wait(child);
    }
}
