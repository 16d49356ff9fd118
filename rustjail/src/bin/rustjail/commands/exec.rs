//! `exec`: runs one more process in a container.

use std::{os::fd::AsFd, path::Path};

use oci_spec::runtime::{ContainerState, Spec};
use rustjail::{
    cgroup::{Cgroup, Placement},
    compile::{self, ExecRequest},
};

use super::Command;
use crate::{
    arguments::{Arguments, Flag, switch, value},
    cgroups,
    console::Console,
    context::Context,
    create,
    error::Error,
    filters::Understood,
    foreground,
    launch::{self, Made, Prepared, Wants},
    listener, process, rdt, rootless,
    seal::{self, Sealed},
    signals::Signals,
    status::Status,
    store::{Container, Record},
};

/// Of this command; its process document has most of them as fields.
pub const FLAGS: &[Flag] = &[
    value(&["process", "p"], "file with a process document, in place of a command"),
    value(&["cwd"], "working directory"),
    value(&["env", "e"], "NAME=value, added to the environment"),
    switch(&["tty", "t"], "give the process a terminal"),
    value(&["user", "u"], "UID[:GID]"),
    value(&["additional-gids", "g"], "one more group"),
    switch(&["detach", "d"], "do not wait for the process"),
    value(&["pid-file"], "file that the process id is written to"),
    value(&["console-socket"], "socket that the master of the terminal is sent to"),
    value(&["pidfd-socket"], "socket that a pidfd of the process is sent to"),
    value(&["process-label"], "SELinux label"),
    value(&["apparmor"], "AppArmor profile"),
    switch(&["no-new-privs"], "execve gives the process no privilege"),
    value(&["cap", "c"], "one more capability"),
    value(&["preserve-fds"], "how many descriptors from 3 on the process gets too"),
    value(&["cgroup"], "group below the container's own to run in"),
    switch(&["ignore-paused"], "in a paused container, too: the process runs once that is resumed"),
    switch(&["no-subreaper"], "taken and ignored: only the process is waited for"),
];

pub const COMMAND: Command = Command {
    name: "exec",
    about: "run a process in a running container",
    usage: "<container-id> <command> [arguments]",
    flags: &[FLAGS],
    operands: (1, usize::MAX),
    flags_end: 2,
    failure: 255,
    run,
};

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    seal::protected(context, arguments, run_protected)
}

#[inline(never)]
fn run_protected(
    context: &Context,
    arguments: &Arguments,
    preserved: u32,
    sealed: Sealed,
) -> Result<u8, Error> {
    let container = Container::open(&context.root, arguments.id())?;
    let record = container.record()?;
    let group = record.as_ref().map(cgroups::open).transpose()?.flatten();
    let status = container.status_in(record.as_ref(), group.as_ref())?;
    let refuse = |problem| Err(Error::State { problem, id: container.id.clone(), status });
    let Some(record) = record.filter(|_| status != Status::Stopped && status != Status::Creating) else {
        return refuse("cannot exec in a stopped container");
    };
    if status == Status::Paused && !arguments.has("ignore-paused") {
        return refuse("cannot exec in a paused container (use --ignore-paused to override)");
    }
    let detached = arguments.has("detach");
    let Understood { mut spec, filter } = container.config_and_filter(&context.root)?;
    let placement = placement(&record, group, arguments.get("cgroup"))?;
    let mut prepared = prepare(&container, &mut spec, &record, placement, arguments)?;
    if let Some(filter) = filter {
        prepared.0.plan.process.seccomp = Some(filter);
    }
    let signals = if detached { None } else { Some(Signals::take()?) };
    let made = launch::make(prepared, preserved, arguments)?;
    let mut made = launch::follow(made, true, |process, wants| match wants {
        Wants::Agent(number) => {
            let process = launch::waiting(process, number);
            listener::hand_over(&container, &spec, &record, ContainerState::Running, process)
        }
        // Only an init has any.
        Wants::Hooks => Ok(()),
    })?;
    launch::announce(&mut made, arguments).inspect_err(|_| launch::kill(&made))?;
    let Made { spawned, console, .. } = made;
    match signals {
        None => Ok(0),
        Some(signals) => {
            let console = console.map(Console::new).transpose()?;
            // The process has closed its own and is at work.
            drop(sealed);
            foreground::attend(spawned.pidfd.as_fd(), console, &signals)
        }
    }
}

fn prepare(
    container: &Container,
    spec: &mut Spec,
    record: &Record,
    placement: Option<Placement>,
    arguments: &Arguments,
) -> Result<Prepared, Error> {
    let requested = process::requested(spec, arguments)?;
    let terminal = requested.terminal().unwrap_or(false);
    create::check_console_socket(
        terminal,
        arguments.get("console-socket").is_some(),
        !arguments.has("detach"),
    )?;
    let stopped = || Error::State {
        problem: "cannot exec in a stopped container",
        id: container.id.clone(),
        status: Status::Stopped,
    };
    let init = record.init.as_ref().and_then(crate::init::Init::pidfd).ok_or_else(stopped)?;
    let (link, sync) = launch::link()?;
    let resctrl = rdt::open(spec, &container.id, record)?;
    let inside = rootless::enter(spec, init.as_fd())?;
    let mut launch = compile::exec(ExecRequest {
        process: &requested,
        spec,
        init: init.as_fd(),
        stdio: launch::stdio(terminal)?,
        placement,
        resctrl: resctrl.as_ref(),
        sync,
    })?;
    inside.adapt(&mut launch.plan);
    Ok((launch, link))
}

/// In the container's own group, or in the one `below` it.
fn placement(record: &Record, own: Option<Cgroup>, below: Option<&str>) -> Result<Option<Placement>, Error> {
    let below = below.map(|below| Path::new(below.trim_start_matches('/')));
    let group = match (&record.cgroup, below.filter(|below| !below.as_os_str().is_empty())) {
        (Some(path), Some(below)) => {
            let path = path.join(below);
            let missing = || Error::Usage(format!("--cgroup: the container has no group {}", path.display()));
            Some(cgroups::open_path(&path)?.ok_or_else(missing)?)
        }
        _ => own,
    };
    Ok(group.as_ref().map(Cgroup::placement).transpose()?)
}
