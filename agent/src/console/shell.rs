//! The process that becomes the shell of a debug console.
//!
//! It is the agent's own binary, started with a terminal as its standard streams, because what has to be done before
//! the shell (a session, a controlling terminal) must not be done in the worker.

use std::{
    fs, io,
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Command, ExitCode},
};

use nix::{sys::signal::SigSet, unistd::setsid};
use rustjail::sys::{process, pty};

/// The argument that picks this role.
pub const ROLE: &str = "shell";

/// The first is where hosts' debugging images have theirs.
const SHELLS: [&str; 3] = ["/run/kata-extensions/devkit/bin/devkit-sh", "/bin/bash", "/bin/sh"];

/// Returns only if there is no shell.
pub fn run() -> ExitCode {
    // It ends before the agent does when memory is short, unlike what it was started by.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    // What the agent's own parent ignored must not make ^C useless here.
    let _ = process::reset_signals();
    let _ = SigSet::empty().thread_set_mask();
    let _ = std::env::set_current_dir("/");
    if let Err(error) = own_terminal() {
        println!("berth-agent: the shell has no terminal of its own, so ^C will not work: {error}\r");
    }
    let Some(shell) = SHELLS.into_iter().find(|shell| Path::new(shell).exists()) else {
        println!("berth-agent: this guest has no shell, so there is no debug console.\r");
        println!("Put one into the image, at any of: {}\r", SHELLS.join(", "));
        return ExitCode::from(127);
    };
    let error = Command::new(shell).exec();
    println!("berth-agent: cannot run {shell}: {error}\r");
    ExitCode::from(126)
}

fn own_terminal() -> io::Result<()> {
    setsid()?;
    pty::set_controlling(io::stdin().as_fd())
}
