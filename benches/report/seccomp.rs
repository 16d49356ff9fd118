//! Compiling and loading the seccomp profile of a usual container.

use std::{hint::black_box, thread, time::Duration};

use nix::sys::prctl;
use rustjail::{
    seccomp::{Filter, compile},
    sys::seccomp::install,
};

use crate::{
    profiles,
    sample::{Samples, interleave},
    table::Table,
};

const ROUNDS: usize = 200;

/// Both are on the way of every container that has no cached filter yet.
pub fn measure(table: &mut Table) {
    let profile = profiles::typical(&["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]);
    let filter = compile(&profile).expect("a profile that compiles");
    let compiled =
        interleave(ROUNDS, Duration::ZERO, &mut [&mut || drop(black_box(compile(black_box(&profile))))]);
    let loaded: Samples = (0..ROUNDS).fold(Samples::default(), |mut samples, _| {
        samples.push(load(&filter));
        samples
    });
    let compiled = compiled.first().map_or(f64::NAN, Samples::median);
    table.figure("seccomp: compile 3 ABIs, 300 calls", compiled * 1e3, "us", Some(100.0));
    table.figure("seccomp: load into the kernel", loaded.median() * 1e3, "us", Some(150.0));
}

/// A filter is its thread's: each load needs a thread of its own, which then ends under it.
fn load(filter: &Filter) -> Duration {
    thread::scope(|scope| {
        let loader = scope.spawn(|| {
            prctl::set_no_new_privs().expect("no_new_privs");
            let start = std::time::Instant::now();
            install(&filter.program, filter.flags).expect("the kernel takes the filter");
            start.elapsed()
        });
        loader.join().expect("a thread that survives its filter")
    })
}
