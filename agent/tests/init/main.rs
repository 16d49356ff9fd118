//! Init with real processes: each test starts it as process 1 of a PID namespace (or as a subreaper), with the
//! real launcher and a worker that does what the test says over the listener.

// Without the standard harness clippy does not know these for tests.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::{env, panic, process::ExitCode, time::Instant};

use berth_agent::launcher;

mod boot;
mod guest;
mod roles;
mod supervision;

/// Every test there is; the list reads as what init promises.
const TESTS: &[(&str, fn())] = &[
    (
        "roles_killed_by_any_signal_are_started_again",
        supervision::roles_killed_by_any_signal_are_started_again,
    ),
    (
        "a_dead_launcher_is_replaced_and_the_worker_stays",
        supervision::a_dead_launcher_is_replaced_and_the_worker_stays,
    ),
    ("exits_are_told_until_acknowledged", supervision::exits_are_told_until_acknowledged),
    (
        "an_exit_before_its_launch_is_settled_is_kept",
        supervision::an_exit_before_its_launch_is_settled_is_kept,
    ),
    ("stored_descriptors_survive_workers", supervision::stored_descriptors_survive_workers),
    (
        "the_last_words_of_a_worker_that_read_nothing_are_heard",
        supervision::the_last_words_of_a_worker_that_read_nothing_are_heard,
    ),
    ("connections_wait_while_no_worker_runs", supervision::connections_wait_while_no_worker_runs),
    (
        "ten_thousand_zombies_are_reaped_in_bounded_memory",
        supervision::ten_thousand_zombies_are_reaped_in_bounded_memory,
    ),
    ("garbage_from_the_worker_is_dropped", supervision::garbage_from_the_worker_is_dropped),
    ("a_silent_worker_is_aborted", supervision::a_silent_worker_is_aborted),
    ("a_worker_ends_everything_by_a_message", supervision::a_worker_ends_everything_by_a_message),
    ("a_subreaper_ends_only_its_own", supervision::a_subreaper_ends_only_its_own),
    ("an_empty_root_is_booted", boot::an_empty_root_is_booted),
    ("a_socket_in_use_is_left_alone", boot::a_socket_in_use_is_left_alone),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["init", directory] => roles::init(directory),
        ["worker", _directory] => roles::worker(),
        ["launcher", _directory] => launcher::run(),
        ["storm", count, made] => roles::storm(count.parse().unwrap(), made),
        ["nothing"] => ExitCode::SUCCESS,
        _ => run(&arguments),
    }
}

fn run(arguments: &[String]) -> ExitCode {
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in TESTS {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        let passed = panic::catch_unwind(test).is_ok();
        let verdict = if passed { "ok" } else { "FAILED" };
        println!("test {name} ... {verdict} ({:.2?})", start.elapsed());
        failed += u8::from(!passed);
    }
    ExitCode::from(failed.min(1))
}
