//! What runs in the new process, between clone3 and execve.
//!
//! The process was cloned from a single-threaded one, so this is ordinary Rust. It walks the plan in an order
//! that is itself the safety argument:
//!
//! ```text
//!  enter     descriptors not in the plan closed, cgroups that are there, user namespace, the other namespaces
//!  build     mounts, devices: through descriptors beneath the root, in sight of the host's tree; the groups that
//!            the maker makes meanwhile are entered before the first step that depends on them
//!  HOOKS ... GO         (a container with hooks only), then those that are run here
//!  close     masks, read-only places: what a hook has done cannot uncover them
//!  switch    pivot_root; from here the host's tree is out of reach
//!  settle    session, terminal, limits, ids, capabilities; the program is found
//!  READY ... START      (a container's init only; it waits if its gate is shut)
//!  run       startContainer hooks, seccomp, execve
//! ```
//!
//! The first step that fails is reported over the sync socket, and the process exits with 255.

use std::{
    convert::Infallible,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
};

use nix::{sched::CloneFlags, sys::prctl, unistd};

use crate::{
    plan::{Gate, Plan},
    rtnetlink,
    sync::{self, StepError},
    sys::{fds::close_range, keyring, net, process as sys_process, sched},
};

mod binary;
mod cgroupfs;
mod clocks;
mod copy_up;
mod devices;
mod groups;
mod hooks;
mod identity;
mod masks;
mod mounts;
mod proc;
mod program;
#[cfg(test)]
mod races;
mod root;
mod step;
mod terminal;
mod tree;

use groups::Groups;
use proc::Proc;
use step::At;
pub(crate) use step::names;

/// The exit status of a process that never got as far as its program.
pub const FAILED: i32 = 255;

/// Goes through `plan` and becomes its program. `hold` ends, with one byte, when the maker has done its part.
pub(crate) fn run(plan: &Plan, fds: &[BorrowedFd<'_>], hold: Option<io::PipeReader>) -> ! {
    let sync = plan.sync.of(fds).and_then(|fd| fd.try_clone_to_owned()).map(File::from);
    let Ok(mut sync) = sync else { sys_process::exit_now(FAILED) };
    // The maker's stack is above this frame: unwinding into it would go on as a second maker.
    let walked = catch_unwind(AssertUnwindSafe(|| walk(plan, fds, hold, &mut sync)));
    let error = match walked {
        Ok(Err(error)) => error,
        Err(_) => StepError {
            step: "go on after a panic".into(),
            path: String::new(),
            errno: libc::ENOTRECOVERABLE,
        },
    };
    // Nobody is left to be told when this fails.
    let _ = sync::report_failure(&mut sync, &error);
    sys_process::exit_now(FAILED)
}

fn walk(
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
    hold: Option<io::PipeReader>,
    sync: &mut File,
) -> Result<Infallible, StepError> {
    let mut groups = Groups::of(plan);
    let proc = enter(plan, fds, hold, sync, &mut groups)?;
    let place = match &plan.root {
        Some(root) => {
            let built = root::build(plan, root, fds, proc.as_ref(), &mut || groups.enter_all(sync))?;
            if hooks::precede_the_switch(&root.hooks) {
                groups.enter_all(sync)?;
                hooks::before_the_switch(&root.hooks, sync)?;
            }
            built.close_and_switch(root, &plan.process.cwd)?
        }
        None => root::joined(plan)?,
    };
    // What is set next, processors and the scheduler's policy, the groups' limits would be applied to.
    groups.enter_all(sync)?;
    if let Some(terminal) = &place.terminal {
        sync::report_console(sync.as_fd(), terminal.master.try_clone().at("copy the terminal", "")?)
            .at("hand the terminal over", "")?;
    }
    settle(plan, fds, &place, proc.as_ref())?;
    // Before every descriptor is closed: an owner that outlives it would close the number again.
    drop((place, proc));

    let program = program::find(&plan.process)?;
    wait_at_gate(plan, fds, sync)?;
    if let Some(root) = &plan.root {
        hooks::before_the_program(&root.hooks, &plan.process)?;
    }
    identity::confine(&plan.process, sync)?;
    program.execute()
}

/// Reports READY, if it is an init, and waits until the program may run; `sync` becomes the link to whoever said so.
fn wait_at_gate(plan: &Plan, fds: &[BorrowedFd<'_>], sync: &mut File) -> Result<(), StepError> {
    const WAIT: &str = "wait for the start";
    let listener = match plan.gate {
        Gate::Connection(slot) => Some(slot.of(fds).at("find the start socket", "")?),
        Gate::Start | Gate::Open => None,
    };
    let kept: Vec<_> = listener.into_iter().chain([sync.as_fd()]).collect();
    close_all_but(plan.preserved_fds, &kept)?;
    if plan.root.is_some() {
        sync::report_ready(sync).at(WAIT, "")?;
    }
    match (plan.gate, listener) {
        (Gate::Open, _) => {}
        // The copy is closed with it, the slot's own by execve.
        (_, Some(listener)) => {
            let listener = listener.try_clone_to_owned().at(WAIT, "")?;
            *sync = sync::accept_start(listener).at(WAIT, "")?;
        }
        // The end of file means that the maker has given the container up, and knows that.
        (_, None) => {
            if !sync::wait_for_start(sync).at(WAIT, "")? {
                sys_process::exit_now(FAILED);
            }
        }
    }
    Ok(())
}

/// Gets rid of what the maker had open, and into the cgroup and the namespaces.
fn enter(
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
    hold: Option<io::PipeReader>,
    sync: &File,
    groups: &mut Groups,
) -> Result<Option<Proc>, StepError> {
    prctl::set_dumpable(false).at("become non-dumpable", "")?;
    let mut keep = fds.to_vec();
    keep.push(sync.as_fd());
    keep.extend(hold.as_ref().map(AsFd::as_fd));
    close_all_but(plan.preserved_fds, &keep)?;
    if let Some(binary) = plan.binary {
        binary::protect(binary.of(fds).at("find", "the runtime's own binary")?)?;
    }
    sys_process::reset_signals().at("reset the signals", "")?;
    nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    if !plan.keep_keyring {
        keyring::new_session().at("make a session keyring", "")?;
    }

    if !plan.process.affinity.initial.is_empty() {
        sched::set_affinity(0, &plan.process.affinity.initial)
            .at("run on the processors of", "execCPUAffinity")?;
    }
    for tasks in &plan.placement.tasks {
        groups::enter(tasks.of(fds).at("find a cgroup's tasks file", "")?)?;
    }
    if let Some(mut hold) = hold {
        wait_until_settled(&mut hold)?;
    }
    // Made in the maker's mount namespace, where nothing can be mounted over it, and before a user namespace
    // is joined in which it could not be made.
    let proc = Proc::open_if_needed(plan)?;
    if in_user_namespace(plan) {
        identity::label(&plan.process, proc.as_ref())?;
    }
    clocks::make(&plan.namespaces, proc.as_ref())?;
    let create = CloneFlags::from_bits_retain(plan.namespaces.create as i32);
    if create.contains(CloneFlags::CLONE_NEWUSER) {
        become_root_of_user_namespace()?;
    }
    join(plan, fds, proc.as_ref())?;
    if !plan.placement.more {
        groups.enter_all(sync)?;
    }
    if create.contains(CloneFlags::CLONE_NEWNET) {
        net::loopback_up().at("bring the loopback device up", "")?;
    }
    for device in &plan.namespaces.net_devices {
        rtnetlink::settle(device).at("set up the network device", &device.new_name)?;
    }
    if let Some(name) = &plan.namespaces.hostname {
        unistd::sethostname(name).at("set the hostname", name)?;
    }
    if let Some(name) = &plan.namespaces.domainname {
        sys_process::set_domainname(name).at("set the domain name", name)?;
    }
    Ok(proc)
}

fn join(plan: &Plan, fds: &[BorrowedFd<'_>], proc: Option<&Proc>) -> Result<(), StepError> {
    let user = libc::CLONE_NEWUSER as u64;
    let joins = &plan.namespaces.joins;
    let joins_user = joins.iter().any(|join| join.kinds & user != 0);
    if joins_user {
        // Raising these is permitted to the initial user namespace only.
        identity::limit(&plan.process, proc)?;
    }
    for join in joins {
        let fd = join.fd.of(fds).at("find a namespace", "")?;
        let kinds = CloneFlags::from_bits_retain(join.kinds as i32);
        nix::sched::setns(fd, kinds).at("join the namespaces", step::names(kinds))?;
    }
    if joins_user { become_root_of_user_namespace() } else { Ok(()) }
}

/// The rest of what the program inherits.
fn settle(
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
    place: &root::Place,
    proc: Option<&Proc>,
) -> Result<(), StepError> {
    unistd::setsid().at("lead a session", "")?;
    terminal::connect(&plan.process, place.terminal.as_ref(), fds)?;
    if !in_user_namespace(plan) {
        identity::limit(&plan.process, proc)?;
        identity::label(&plan.process, proc)?;
    }
    program::enter_directory(&plan.process.cwd, place.cwd.as_fd())?;
    identity::assume(&plan.process)
}

fn in_user_namespace(plan: &Plan) -> bool {
    let user = libc::CLONE_NEWUSER as u64;
    plan.namespaces.create & user != 0 || plan.namespaces.joins.iter().any(|join| join.kinds & user != 0)
}

fn wait_until_settled(hold: &mut io::PipeReader) -> Result<(), StepError> {
    match hold.read(&mut [0; 1]).at("wait for the id maps", "")? {
        1 => Ok(()),
        // The maker could not do its part, and says so itself.
        _ => sys_process::exit_now(FAILED),
    }
}

/// A process that enters a user namespace keeps its outer ids, which mean nobody inside.
pub(crate) fn become_root_of_user_namespace() -> Result<(), StepError> {
    crate::sys::identity::setgid(0).at("become group 0 of the user namespace", "")?;
    crate::sys::identity::setuid(0).at("become user 0 of the user namespace", "")
}

/// Closes every descriptor above standard error, and the `preserved` ones after it, that is not in `keep`.
fn close_all_but(preserved: u32, keep: &[BorrowedFd<'_>]) -> Result<(), StepError> {
    let first = 3_u32.saturating_add(preserved);
    let mut numbers: Vec<u32> =
        keep.iter().map(|fd| fd.as_raw_fd() as u32).filter(|fd| *fd >= first).collect();
    numbers.sort_unstable();
    let mut next = first;
    for number in numbers {
        if number > next {
            close_range(next, number - 1).at("close the maker's descriptors", "")?;
        }
        next = number + 1;
    }
    close_range(next, u32::MAX).at("close the maker's descriptors", "")
}

/// A directory that only names a place.
fn open_directory(path: &str) -> Result<OwnedFd, StepError> {
    use nix::fcntl::{OFlag, open};
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    open(path, flags, nix::sys::stat::Mode::empty()).at("open", path)
}
