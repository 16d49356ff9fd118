//! `berth-peak PROGRAM ARGUMENT...` runs a program and prints the most memory, in KiB, that it or a process it
//! waited for had. A process begins with the peak of the one that executed it, so a large program cannot measure
//! a small one; this one is smaller than any.

#![allow(clippy::expect_used)]

use std::{env, process::Command};

use nix::sys::resource::{UsageWho, getrusage};

fn main() {
    let mut arguments = env::args_os().skip(1);
    let program = arguments.next().expect("a program");
    let status = Command::new(&program).args(arguments).status().expect("run the program");
    assert!(status.success(), "{}: {status}", program.display());
    println!("{}", getrusage(UsageWho::RUSAGE_CHILDREN).expect("getrusage").max_rss());
}
