//! `berth-agent`: picks the role. Whoever starts it gets init; init starts the other two.

use std::{path::Path, process::ExitCode};

use berth_agent::{
    config::{self, Config},
    console, init, launcher, worker,
};
use nix::sys::{prctl, signal::SigSet};

/// See `docs/performance.md` on why the agent is built for musl, but not with its allocator.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    // The kernel gives process 1 whatever words of its command line it did not know: no role is picked by them.
    if std::process::id() == 1 {
        return init::run(&arguments);
    }
    // The kernel runs this path to have a module loaded.
    if std::env::args_os().next().is_some_and(|name| Path::new(&name).ends_with("modprobe")) {
        return ExitCode::from(init::modules::modprobe(&arguments));
    }
    match arguments.split_first() {
        Some((role, rest)) if role == "worker" => {
            // Init blocks the signals it reads, and a mask is inherited.
            let _ = SigSet::empty().thread_set_mask();
            let _ = prctl::set_name(c"berth-worker");
            worker::run(Config::load(rest))
        }
        Some((role, _)) if role == "launcher" => launcher::run(),
        Some((role, [])) if role == console::ROLE => console::run_shell(),
        _ if arguments.iter().any(|argument| argument == "--version" || argument == "-V") => {
            println!("berth-agent {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ if arguments.iter().any(|argument| argument == "--help" || argument == "-h") => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        _ => match Config::check(&arguments) {
            Ok(()) => init::run(&arguments),
            Err(problem) => {
                eprintln!("berth-agent: {problem}\nTry: berth-agent --help");
                ExitCode::from(2)
            }
        },
    }
}

fn help() -> String {
    let mut text = String::from(
        "berth-agent runs OCI containers for a host that calls it by ttrpc (grpc.AgentService).\n\n\
         Usage: berth-agent [OPTION VALUE]...\n\n\
         As process 1 it boots the guest and powers it off at the end. Anywhere else it leaves the machine\n\
         as it is and adopts its containers as a child subreaper; SIGTERM ends it and them. To try it:\n\n    \
         berth-agent --listen unix:///run/berth.sock\n\n\
         Each setting is taken from the kernel's command line or a file, the environment, and the arguments;\n\
         the last one wins. A value that makes no sense is reported and ignored.\n",
    );
    text += &config::help();
    text += "\n  --version, --help\n      say so, and end\n";
    text
}
