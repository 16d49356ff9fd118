//! The process between, for user namespaces in company.
//!
//! clone3 makes a new user namespace first and all others in it; a process that then joins others has no right
//! to any more. And what is made for an existing user namespace has to be made by a process that is in it, from
//! which nobody returns. Either way a process goes first: it enters what is to be entered, clones the one that
//! is wanted (as its sibling, so that whoever was to be its parent is), and ends.
//!
//! ```text
//!  maker --clone3--> stage: cgroups, limits, setns ... --clone3(CLONE_PARENT | CLONE_NEW*)--> child
//!    |<---- socket: pid + pidfd, or the step that failed ----|
//! ```

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::{
    sched::{CloneFlags, setns},
    sys::socket::{AddressFamily, SockFlag, SockType, socketpair},
    unistd,
};

use super::{Parent, SpawnError, birth_flags};
use crate::{
    child,
    limits::{self, LimitError},
    plan::{Namespaces, Placement, Plan, Process},
    sync::{self, StepError},
    sys::{
        clone::{Cloned, clone3},
        pidfd,
        process::exit_now,
        scm,
    },
};

/// The longest answer: a failed step.
const MAX_ANSWER: usize = 8 * 1024;

const MADE: u8 = b'M';
const FAILED: u8 = b'F';

/// Whether `plan` cannot be had by one clone3. An exec enters with what its maker has, all at once.
pub(super) fn needed(plan: &Plan) -> bool {
    let user = libc::CLONE_NEWUSER as u64;
    let joins = &plan.namespaces.joins;
    plan.root.is_some()
        && (joins.iter().any(|join| join.kinds & user != 0)
            || (plan.namespaces.create & user != 0 && !joins.is_empty()))
}

/// Makes the process by way of another. Returns `Cloned::Child` in the process that was wanted, with the plan
/// that is left for it to go through.
pub(super) fn clone_through(
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
    into: Option<BorrowedFd<'_>>,
    parent: Parent,
) -> Result<(Cloned, Option<Plan>), SpawnError> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .map_err(|errno| SpawnError::Clone(errno.into()))?;
    match clone3(0, into, parent == Parent::Sibling).map_err(SpawnError::Clone)? {
        Cloned::Child => {
            drop(ours);
            match enter_and_clone(plan, fds) {
                Ok(Cloned::Child) => Ok((Cloned::Child, Some(rest_of(plan)))),
                Ok(Cloned::Parent(pid, pidfd)) => {
                    let answer = [&[MADE], pid.to_ne_bytes().as_slice()].concat();
                    answer_and_end(theirs, &answer, &[pidfd.as_fd()])
                }
                Err(error) => {
                    answer_and_end(theirs, &[&[FAILED], sync::encode(&error).as_slice()].concat(), &[])
                }
            }
        }
        Cloned::Parent(_, stage) => {
            drop(theirs);
            let answer = hear(ours.as_fd());
            if parent == Parent::Caller {
                // It has nothing left to do once it has answered.
                pidfd::wait(stage.as_fd()).map_err(SpawnError::Clone)?;
            }
            answer.map(|(pid, pidfd)| (Cloned::Parent(pid, pidfd), None))
        }
    }
}

fn answer_and_end(socket: OwnedFd, answer: &[u8], fds: &[BorrowedFd<'_>]) -> ! {
    // A maker that is gone has no use for the answer, nor for the child: its hold ends with the maker.
    let _ = scm::send(socket.as_fd(), answer, fds);
    exit_now(0)
}

fn hear(socket: BorrowedFd<'_>) -> Result<(i32, OwnedFd), SpawnError> {
    let mut buffer = [0; MAX_ANSWER];
    let mut received = scm::receive(socket, &mut buffer).map_err(SpawnError::Clone)?;
    let answer = buffer.get(..received.length).unwrap_or_default();
    match (answer.split_first(), received.fds.pop()) {
        (Some((&MADE, pid)), Some(pidfd)) if pid.len() == 4 => {
            let pid = pid.first_chunk().copied().map(i32::from_ne_bytes).unwrap_or_default();
            Ok((pid, pidfd))
        }
        // After the tag comes what a child would send as a failure, tag and all.
        (Some((&FAILED, [_, rest @ ..])), _) => match sync::decode(rest) {
            Some(error) => Err(SpawnError::Stage(error)),
            None => Err(SpawnError::Clone(io::ErrorKind::InvalidData.into())),
        },
        _ => Err(SpawnError::Clone(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// What the stage does, with the privileges it was born with for as long as that helps.
fn enter_and_clone(plan: &Plan, fds: &[BorrowedFd<'_>]) -> Result<Cloned, StepError> {
    let fail = |step: &str, path: &str, errno: i32| StepError { step: step.into(), path: path.into(), errno };
    let code = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
    for tasks in &plan.placement.tasks {
        let entered = tasks.of(fds).and_then(|file| Ok(unistd::write(file, b"0")?));
        entered.map_err(|error| fail("enter the cgroup", "", code(error)))?;
    }
    if plan.namespaces.create & libc::CLONE_NEWUSER as u64 == 0 {
        limit(&plan.process)?;
    }
    join_all(plan, fds)?;
    let cloned = clone3(birth_flags(plan), None, true);
    cloned.map_err(|error| fail("clone the container process", "", code(error)))
}

fn limit(process: &Process) -> Result<(), StepError> {
    if let Some(adjustment) = process.oom_score_adj {
        std::fs::write("/proc/self/oom_score_adj", adjustment.to_string()).map_err(|error| StepError {
            step: "write".into(),
            path: "/proc/self/oom_score_adj".into(),
            errno: error.raw_os_error().unwrap_or(libc::EINVAL),
        })?;
    }
    limits::apply(0, process).map_err(|LimitError { step, shown, source }| StepError {
        step: step.into(),
        path: shown,
        errno: source.raw_os_error().unwrap_or(libc::EINVAL),
    })
}

/// Enters everything, the user namespace after what its users have no right to and before what only they have.
fn join_all(plan: &Plan, fds: &[BorrowedFd<'_>]) -> Result<(), StepError> {
    let user = libc::CLONE_NEWUSER as u64;
    let pid = plan.namespaces.pid.map(|slot| (slot, libc::CLONE_NEWPID as u64));
    let joins = plan.namespaces.joins.iter().map(|join| (join.fd, join.kinds)).chain(pid);
    let (users, others): (Vec<_>, Vec<_>) = joins.partition(|(_, kinds)| kinds & user != 0);
    let enter = |slot: crate::plan::Slot, kinds: u64| -> io::Result<()> {
        Ok(setns(slot.of(fds)?, CloneFlags::from_bits_retain(kinds as i32))?)
    };
    let fail = |kinds: u64, error: io::Error| StepError {
        step: "join the namespaces".into(),
        path: child::names(CloneFlags::from_bits_retain(kinds as i32)),
        errno: error.raw_os_error().unwrap_or(libc::EINVAL),
    };
    let mut later = Vec::new();
    for (slot, kinds) in others {
        match enter(slot, kinds) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) && !users.is_empty() => {
                later.push((slot, kinds));
            }
            result => result.map_err(|error| fail(kinds, error))?,
        }
    }
    for (slot, kinds) in users {
        enter(slot, kinds).map_err(|error| fail(kinds, error))?;
        child::become_root_of_user_namespace()?;
    }
    later.into_iter().try_for_each(|(slot, kinds)| enter(slot, kinds).map_err(|error| fail(kinds, error)))
}

/// The plan without what the stage has done.
fn rest_of(plan: &Plan) -> Plan {
    let mut rest = plan.clone();
    rest.namespaces = Namespaces { joins: Vec::new(), pid: None, ..rest.namespaces };
    rest.placement = Placement { more: plan.placement.more, ..Placement::default() };
    rest.process.oom_score_adj = None;
    rest.process.rlimits = Vec::new();
    rest.process.scheduler = None;
    rest.process.io_priority = None;
    rest
}
