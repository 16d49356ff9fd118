//! Process 1, or a child subreaper where something else is: one thread that everything else depends on.
//!
//! It boots, opens the listeners, starts worker and launcher from a sealed copy of its own binary, and then
//! reaps, keeps what must survive a worker (exits, descriptors, listeners), restarts what dies, and ends the
//! machine when told to. It parses nothing a host or a workload wrote, blocks on nothing but `poll` (a second
//! thread closes what it no longer keeps), and owns no memory that they can make grow. If it ends, the kernel panics and every container is lost: so nothing here
//! may exit, and a panic is caught and the loop entered again with all it knows.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Duration,
};

use nix::{
    fcntl::OFlag,
    sys::{
        prctl,
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::pipe2,
};

use rustjail::sys::fds;

use crate::{config::Config, link::ListenerKind, observe::sink::Sink};

mod boot;
mod cgroups;
mod closer;
mod exits;
mod listeners;
pub mod modules;
mod mounts;
mod roles;
mod shutdown;
mod story;
mod supervise;

pub use listeners::{ListenError, Listener};
pub use roles::Program;
pub use story::Story;
pub use supervise::{Init, STORE_CAPACITY};

/// Boots as far as this process is the one to do it, and supervises until told to end.
pub fn run(arguments: &[String]) -> ExitCode {
    let pid1 = std::process::id() == 1;
    // What a careless parent left open is none of the roles' business.
    let _ = fds::close_on_exec_from(3);
    // The second time round, as the sealed copy, all of this is found done.
    let sealed = Program::is_sealed();
    let unmounted = if pid1 { boot::file_systems(!sealed) } else { Vec::new() };
    let unsealed = (!sealed).then(Program::become_sealed);
    // The copy was started by a descriptor's path, whose number would be its name.
    let _ = prctl::set_name(c"berth-agent");
    let Ok(mut story) = Story::on_stdout() else {
        return ExitCode::FAILURE;
    };
    story.stage(if pid1 { "mounts" } else { "start" });

    let config = Config::load(arguments);
    story.set_level(config.log_level);
    let records = open_records(&config, &mut story);
    unmounted.iter().for_each(|problem| story.problem(problem));
    if let Some(error) = unsealed {
        story.problem(&format_args!("init runs from its file, not from a sealed copy: {error}"));
    }
    config.warnings.iter().for_each(|warning| story.problem(&format_args!("ignored: {warning}")));

    if pid1 {
        boot::environment(config.cgroup_v1).iter().for_each(|problem| story.problem(problem));
        story.stage("environment");
        modules::load(&config.modules).iter().for_each(|problem| story.problem(problem));
        story.stage("modules");
    } else if let Err(problem) = boot::descriptors(0) {
        story.problem(&problem);
    }
    // Inherited by the roles, so that a guest short of memory ends a container first. Containers reset it.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");

    match prepare(pid1, &mut story, arguments) {
        Ok((signals, program)) => {
            let listeners = listeners(pid1, &config, &mut story, &signals);
            let complete = listeners.iter().any(|listener| listener.kind == ListenerKind::Rpc);
            let init = Init::new(pid1, story, signals, program, listeners).with_records(records);
            // Without the first listener there is nothing to serve: init was told to end while it tried.
            if complete {
                supervise(init);
                ExitCode::SUCCESS
            } else {
                init.end();
                ExitCode::FAILURE
            }
        }
        Err(problem) => {
            story.problem(&format_args!("nothing can work without this: {problem}"));
            if pid1 {
                shutdown::park();
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs `init` to its end, through any panic.
pub fn supervise(mut init: Init) {
    while catch_unwind(AssertUnwindSafe(|| init.run())).is_err() {
        init.after_panic();
    }
    init.end();
}

fn prepare(
    pid1: bool,
    story: &mut Story,
    arguments: &[String],
) -> Result<(SignalFd, Program), Box<dyn std::error::Error>> {
    if !pid1 {
        prctl::set_child_subreaper(true)?;
    }
    let program = Program::current(arguments.to_vec())?;
    story.stage("image");
    Ok((signals()?, program))
}

/// The pipe between whoever logs and the log's port, if there is to be one: its reading end.
fn open_records(config: &Config, story: &mut Story) -> Option<OwnedFd> {
    /// What may be logged while no worker reads it.
    const ROOM: usize = 256 << 10;
    if config.log_port == 0 {
        return None;
    }
    let pipe = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK);
    match pipe {
        Ok((reader, writer)) => {
            // The kernel's 64 KiB do as well.
            let _smaller = rustjail::sys::pipe::set_size(reader.as_fd(), ROOM);
            story.add(Sink::new(writer, "init"));
            Some(reader)
        }
        Err(errno) => {
            story.problem(&format_args!("the log cannot be read at a port: {errno}"));
            None
        }
    }
}

/// Opens the ports. As process 1 it goes on trying for the one that calls come to, because to end would be a kernel
/// panic; without it if told to end meanwhile.
fn listeners(pid1: bool, config: &Config, story: &mut Story, signals: &SignalFd) -> Vec<Listener> {
    /// Nothing tells when an address becomes free or a driver appears.
    const AGAIN: Duration = Duration::from_secs(1);
    let mut listeners = Vec::new();
    let address = &config.server_address;
    let mut others = vec![(ListenerKind::Stdio, address.beside("stdio", config.stdio_port))];
    if config.log_port != 0 {
        others.push((ListenerKind::Log, address.beside("log", config.log_port)));
    }
    if config.debug_console && config.debug_console_port != 0 {
        others.push((ListenerKind::Console, address.beside("console", config.debug_console_port)));
    }
    for (kind, address) in others {
        match Listener::open(kind, address) {
            Ok(listener) => listeners.push(listener),
            Err(problem) => story.problem(&format_args!("{} not served: {problem}", kind.served())),
        }
    }
    // The last, so that who sees this one finds the others.
    let mut told = String::new();
    loop {
        match Listener::open(ListenerKind::Rpc, config.server_address.clone()) {
            Ok(listener) => {
                listeners.push(listener);
                break;
            }
            Err(problem) => {
                let again = if pid1 { "; tried again each second" } else { "" };
                let problem = format!("{problem}{again}");
                if problem != told {
                    story.problem(&format_args!("calls cannot be served: {problem}"));
                }
                told = problem;
                if !pid1 || shutdown::told_to_end(signals, AGAIN) {
                    return listeners;
                }
            }
        }
    }
    story.stage("listening");
    listeners
}

/// The signals init reads. SIGHUP is among them so that it does nothing.
pub fn signals() -> nix::Result<SignalFd> {
    let signals =
        SigSet::from_iter([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGPWR, Signal::SIGHUP]);
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}
