//! `rustjail`: OCI containers from the command line, in place of runc.
//!
//! One process with one thread does everything: it compiles the bundle, makes one `clone3` through the library
//! and waits. Nothing stays behind but the container and its directory below `--root` (see [`store`]), so any
//! later command can be the last one. Standard error is silent on success; a failure is one line there, or in
//! the file that `--log` names, and the exit status that runc would give.

mod arguments;
mod bundle;
mod cgroups;
mod commands;
mod console;
mod context;
mod create;
mod error;
mod filters;
mod foreground;
mod hooks;
mod inherited;
mod init;
mod launch;
mod listener;
mod log;
mod process;
mod rdt;
mod rootless;
mod seal;
mod signals;
mod stats;
mod status;
mod store;
mod systemd;
mod time;

use std::process::ExitCode;

/// See `docs/rustjail.md` on why the command is built for musl, and the manifest on why not with its allocator.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    seal::ensure_early();
    ExitCode::from(commands::run(std::env::args_os()))
}
