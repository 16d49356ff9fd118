//! Limits, ids and privileges, in the only order in which each step still may do what it does.

use std::{fs::File, os::fd::AsFd as _};

use nix::sys::prctl;

use super::{proc::Proc, step::At};
use crate::{
    limits::{self, LimitError},
    plan::Process,
    sync::{self, StepError},
    sys::{
        caps::{self, Sets},
        identity::{setgid, setgroups, setuid},
        process as sys_process, sched, seccomp,
    },
};

const CAP_SYS_ADMIN: u64 = 1 << 21;

/// What takes privileges of the initial user namespace.
pub(super) fn limit(process: &Process, proc: Option<&Proc>) -> Result<(), StepError> {
    if let (Some(adjustment), Some(proc)) = (process.oom_score_adj, proc) {
        proc.write("self/oom_score_adj", &adjustment.to_string())?;
    }
    limits::apply(0, process).map_err(|LimitError { step, shown, source }| StepError {
        step: step.to_owned(),
        path: shown,
        errno: source.raw_os_error().unwrap_or(libc::EINVAL),
    })
}

/// Has execve label the program. The files are the kernel's initial root's for a process that cannot be
/// dumped, so in a user namespace this comes before its users do.
pub(super) fn label(process: &Process, proc: Option<&Proc>) -> Result<(), StepError> {
    let Some(proc) = proc else { return Ok(()) };
    if let Some(label) = &process.labels.selinux {
        proc.write("self/attr/exec", label)?;
    }
    match &process.labels.apparmor {
        Some(name) => proc.write("self/attr/apparmor/exec", &format!("exec {name}")),
        None => Ok(()),
    }
}

/// Takes on the user, the groups and the capabilities.
pub(super) fn assume(process: &Process) -> Result<(), StepError> {
    if !process.affinity.settled.is_empty() {
        sched::set_affinity(0, &process.affinity.settled)
            .at("run on the processors of", "execCPUAffinity")?;
    }
    if let Some(policy) = &process.memory_policy {
        sched::set_memory_policy(policy.mode, &policy.nodes).at("set the memory policy", "")?;
    }
    if let Some(domain) = process.personality {
        sys_process::set_personality(domain).at("set the personality", "")?;
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_retain(process.umask));
    if process.no_new_privileges {
        prctl::set_no_new_privs().at("give up new privileges", "")?;
    }
    caps::limit_bounding(process.capabilities.bounding).at("limit the capability bounding set", "")?;

    let identity = &process.identity;
    prctl::set_keepcaps(true).at("keep capabilities over the change of user", "")?;
    // Groups first: after setuid nothing of this is permitted any more.
    if !identity.keep_groups {
        setgroups(&identity.groups).at("set the supplementary groups", "")?;
    }
    setgid(identity.gid).at("become group", identity.gid.to_string())?;
    setuid(identity.uid).at("become user", identity.uid.to_string())?;
    prctl::set_keepcaps(false).at("stop keeping capabilities", "")?;

    if filters_with_privilege(process) { limit_capabilities(process, CAP_SYS_ADMIN) } else { reduce(process) }
}

/// Installs the seccomp filter. Without no_new_privileges that takes CAP_SYS_ADMIN, which is held until here
/// and dropped under the filter already; with it, nothing but execve is left to do.
///
/// A listener is handed over first of all: whatever comes after it may be a call that the agent decides.
pub(super) fn confine(process: &Process, maker: &mut File) -> Result<(), StepError> {
    let Some(filter) = &process.seccomp else {
        return Ok(());
    };
    let listener = seccomp::install(&filter.program, filter.flags).at("install the seccomp filter", "")?;
    if let Some(listener) = listener
        && !sync::offer_listener(maker, listener.as_fd()).at("hand over the seccomp listener", "")?
    {
        // The maker has given the process up, and knows that.
        sys_process::exit_now(super::FAILED);
    }
    if filters_with_privilege(process) { reduce(process) } else { Ok(()) }
}

fn filters_with_privilege(process: &Process) -> bool {
    process.seccomp.is_some() && !process.no_new_privileges
}

/// Leaves exactly the capabilities of the plan.
fn reduce(process: &Process) -> Result<(), StepError> {
    limit_capabilities(process, 0)?;
    let wanted = &process.capabilities;
    let have = caps::get().at("read the capabilities", "")?;
    caps::set_ambient(wanted.ambient & have.permitted & have.inheritable)
        .at("set the ambient capabilities", "")
}

/// What is asked for but not held cannot be granted; runtime-spec 1.1 has it ignored.
fn limit_capabilities(process: &Process, besides: u64) -> Result<(), StepError> {
    let wanted = &process.capabilities;
    let held = caps::get().at("read the capabilities", "")?.permitted;
    let permitted = (wanted.permitted | besides) & held;
    let sets = Sets {
        permitted,
        effective: (wanted.effective | besides) & permitted,
        inheritable: wanted.inheritable & held & wanted.bounding,
    };
    caps::set(sets).at("set the capabilities", "")
}
