//! From a plan to a running child.
//!
//! One `clone3` makes the process in its new namespaces and its cgroup2; everything else it does itself (see
//! [`crate::child`]). Two things only its maker can do. To have it born into an existing PID namespace, the
//! maker makes that namespace the one of its children, clones, and takes its own back, which the kernel
//! permits: no process in between (but where user namespaces are joined, see `stage`). And what needs privileges
//! over the machine is done from here while the child waits: the id maps of a new user namespace, limits in one,
//! network devices that are handed over.

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
    limits::{self, LimitError},
    plan::{Gate, IdMap, Plan, Slot},
    rtnetlink,
    sync::StepError,
    sys::{
        clone::{Cloned, clone3},
        pidfd,
    },
};

mod elsewhere;
mod idmapped;
mod stage;

pub use elsewhere::leave_processor_to;

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
    /// A setting that takes privileges the process does not have itself.
    #[error("cannot {step} {shown} of the container process: {source}")]
    Limit {
        /// What was being done.
        step: &'static str,
        /// What it was to be.
        shown: String,
        /// How it failed.
        source: io::Error,
    },
    /// The ids of a mount.
    #[error("mount {target}: cannot map its ids: {source}")]
    IdMap {
        /// Where it was to be.
        target: String,
        /// How it failed.
        source: io::Error,
    },
    /// A network device.
    #[error("cannot hand the network device {name} to the container as {new_name}: {source}")]
    NetDevice {
        /// As the machine knows it.
        name: String,
        /// As the container would.
        new_name: String,
        /// How it failed.
        source: io::Error,
    },
    /// A step of the process that goes before the container's.
    #[error(transparent)]
    Stage(StepError),
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
    idmapped::map_all(plan, fds).map_err(|(target, source)| SpawnError::IdMap { target, source })?;
    prctl::set_dumpable(false).map_err(|errno| SpawnError::Clone(errno.into()))?;

    let (cloned, rest) = match pid_namespace {
        _ if stage::needed(plan) => stage::clone_through(plan, fds, into, parent)?,
        None => {
            let cloned = clone3(birth_flags(plan), into, parent == Parent::Sibling);
            (cloned.map_err(SpawnError::Clone)?, None)
        }
        Some(namespace) => (clone_into_pid_namespace(plan, namespace, into, parent)?, None),
    };
    match cloned {
        Cloned::Child => child::run(rest.as_ref().unwrap_or(plan), fds, hold.map(|hold| hold.wait)),
        Cloned::Parent(pid, pidfd) => {
            let settled = match hold {
                Some(hold) => settle(plan, fds, pid).and_then(|()| hold.release()),
                None => Ok(()),
            };
            match settled.and_then(|()| adjust(plan, pid, pidfd.as_fd())) {
                Ok(()) => Ok(Spawned { pid, pidfd }),
                Err(error) => {
                    abandon(pidfd.as_fd(), parent);
                    Err(error)
                }
            }
        }
    }
}

/// The namespaces clone3 makes. A cgroup namespace is rooted at its creator's cgroup, which during clone3 is
/// still the caller's, so the child makes its own once it is placed.
fn birth_flags(plan: &Plan) -> u64 {
    let mut later = libc::CLONE_NEWCGROUP as u64;
    if !plan.namespaces.time_offsets.is_empty() {
        // Nobody may be in it before its clocks are set.
        later |= libc::CLONE_NEWTIME as u64;
    }
    plan.namespaces.create & !later
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

/// Keeps a child from going on until its maker has done what only it can.
struct Hold {
    wait: io::PipeReader,
    go: io::PipeWriter,
}

impl Hold {
    fn new(plan: &Plan) -> io::Result<Option<Self>> {
        if !makes_user_namespace(plan) && plan.namespaces.net_devices.is_empty() {
            return Ok(None);
        }
        let (wait, go) = io::pipe()?;
        Ok(Some(Self { wait, go }))
    }

    fn release(mut self) -> Result<(), SpawnError> {
        io::Write::write_all(&mut self.go, &[1]).map_err(SpawnError::Clone)
    }
}

/// What the process cannot do for itself: its id maps, the limits whose raising the kernel permits to the
/// initial user namespace only, and taking devices from the machine.
fn settle(plan: &Plan, fds: &[BorrowedFd<'_>], pid: i32) -> Result<(), SpawnError> {
    if makes_user_namespace(plan) {
        let write = |file: &'static str, text: String| {
            fs::write(format!("/proc/{pid}/{file}"), text)
                .map_err(|source| SpawnError::Setting { file, source })
        };
        write("uid_map", lines(&plan.namespaces.uid_map))?;
        write("gid_map", lines(&plan.namespaces.gid_map))?;
        if let Some(adjustment) = plan.process.oom_score_adj {
            write("oom_score_adj", adjustment.to_string())?;
        }
        limits::apply(pid, &plan.process)
            .map_err(|LimitError { step, shown, source }| SpawnError::Limit { step, shown, source })?;
    }
    hand_devices_over(plan, fds, pid)
}

/// Whether the process leaves its oom_score_adj to its maker: one that waits for it later anyway does. Else it makes a procfs
/// of its own to write it, and taking that apart alone waits for an RCU grace period.
pub(crate) fn maker_adjusts(plan: &Plan) -> bool {
    plan.process.oom_score_adj.is_some()
        && (plan.gate != Gate::Open || plan.placement.more)
        && !makes_user_namespace(plan)
        && !stage::needed(plan)
}

/// Sets what [`maker_adjusts`] speaks of, while the process mounts. One that has ended says itself why.
fn adjust(plan: &Plan, pid: i32, pidfd: BorrowedFd<'_>) -> Result<(), SpawnError> {
    let Some(adjustment) = plan.process.oom_score_adj.filter(|_| maker_adjusts(plan)) else {
        return Ok(());
    };
    let is_over = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
    let written =
        fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/oom_score_adj")).and_then(|mut file| {
            // It is the process's file, if the number still is: the file goes on to mean whom it meant when it was opened.
            pidfd::signal(pidfd, 0)?;
            io::Write::write_all(&mut file, adjustment.to_string().as_bytes())
        });
    match written {
        Err(error) if !is_over(&error) => Err(SpawnError::Setting { file: "oom_score_adj", source: error }),
        _ => Ok(()),
    }
}

fn hand_devices_over(plan: &Plan, fds: &[BorrowedFd<'_>], pid: i32) -> Result<(), SpawnError> {
    let network = libc::CLONE_NEWNET as u64;
    let joined = plan.namespaces.joins.iter().find(|join| join.kinds & network != 0);
    for device in &plan.namespaces.net_devices {
        let handed = match joined {
            Some(join) => join.fd.of(fds).and_then(|fd| rtnetlink::hand_over(device, fd)),
            None => fs::File::open(format!("/proc/{pid}/ns/net"))
                .and_then(|namespace| rtnetlink::hand_over(device, namespace.as_fd())),
        };
        let (name, new_name) = (device.name.clone(), device.new_name.clone());
        handed.map_err(|source| SpawnError::NetDevice { name, new_name, source })?;
    }
    Ok(())
}

fn makes_user_namespace(plan: &Plan) -> bool {
    plan.namespaces.create & libc::CLONE_NEWUSER as u64 != 0
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
