//! Process 1, or a child subreaper where something else is: one thread that everything else depends on.
//!
//! It boots, opens the listeners, starts worker and launcher from a sealed copy of its own binary, and then
//! reaps, keeps what must survive a worker (exits, descriptors, listeners), restarts what dies, and ends the
//! machine when told to. It parses nothing a host or a workload wrote, blocks on nothing but `poll`, and owns no
//! memory that they can make grow. If it ends, the kernel panics and every container is lost: so nothing here
//! may exit, and a panic is caught and the loop entered again with all it knows.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

use nix::sys::{
    prctl,
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

use rustjail::sys::fds;

use crate::{config::Config, link::ListenerKind};

mod boot;
mod cgroups;
mod exits;
mod listeners;
pub mod modules;
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

    match prepare(pid1, &config, &mut story, arguments) {
        Ok((signals, program, listeners)) => {
            supervise(Init::new(pid1, story, signals, program, listeners));
            ExitCode::SUCCESS
        }
        Err(problem) => {
            story.problem(&format_args!("nothing can work without this: {problem}"));
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

type Prepared = (SignalFd, Program, Vec<Listener>);

fn prepare(
    pid1: bool,
    config: &Config,
    story: &mut Story,
    arguments: &[String],
) -> Result<Prepared, Box<dyn std::error::Error>> {
    let mut listeners = vec![Listener::open(ListenerKind::Rpc, config.server_address.clone())?];
    match Listener::open(ListenerKind::Stdio, config.server_address.for_stdio(config.stdio_port)) {
        Ok(listener) => listeners.push(listener),
        Err(problem) => story.problem(&format_args!("raw standard streams are not served: {problem}")),
    }
    story.stage("listening");

    if !pid1 {
        prctl::set_child_subreaper(true)?;
    }
    let program = Program::current(arguments.to_vec())?;
    story.stage("image");
    Ok((signals()?, program, listeners))
}

/// The signals init reads. SIGHUP is among them so that it does nothing.
pub fn signals() -> nix::Result<SignalFd> {
    let signals =
        SigSet::from_iter([Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGPWR, Signal::SIGHUP]);
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}
