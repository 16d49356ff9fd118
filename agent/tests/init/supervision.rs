//! What outlives what.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    os::unix::{net::UnixStream, process::ExitStatusExt},
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};

use crate::guest::{As, Guest, children, kilobytes, until};

pub fn roles_killed_by_any_signal_are_started_again() {
    let guest = Guest::start("restart", As::ProcessOne);
    let launcher = guest.role_pid("launcher");
    let signals = [Signal::SIGKILL, Signal::SIGABRT, Signal::SIGTERM, Signal::SIGILL];
    let mut times: Vec<Duration> =
        signals.into_iter().map(|signal| guest.crash_worker_by(|| guest.signal("worker", signal))).collect();
    // A real one: std's handler swallows a first SIGSEGV that kill(2) sends.
    times.push(guest.crash_worker_by(|| assert_eq!(guest.ask("overflow"), "")));
    assert_eq!(guest.generation(), 5);
    // The pair is replaced together.
    assert_ne!(guest.role_pid("launcher"), launcher);
    assert!(!Path::new(&format!("/proc/{launcher}")).exists());
    times.sort();
    println!("     worker killed -> the next one answers: median {:.2?}, worst {:.2?}", times[2], times[4]);
    println!(
        "     init: PSS {} KiB, RSS {} KiB (unoptimised test binary)",
        kilobytes(guest.init_pid(), "smaps_rollup", "Pss:"),
        kilobytes(guest.init_pid(), "status", "VmRSS:")
    );
    // Past five deaths there is a pause, and still a next worker.
    guest.crash_worker();
    guest.crash_worker();
    assert_eq!(guest.generation(), 7);
    assert_eq!(guest.ask("stages"), "listening");
}

pub fn a_dead_launcher_is_replaced_and_the_worker_stays() {
    let guest = Guest::start("launcher", As::ProcessOne);
    for round in 0..3 {
        let before = guest.role_pid("launcher");
        kill(Pid::from_raw(before), Signal::SIGKILL).unwrap();
        until("the next launcher", || (guest.role_pid("launcher") != before).then_some(()));
        let pid = guest.launch(&format!("exit {round}"));
        assert_eq!(guest.ask("next_exit"), format!("{pid} {round}"));
        guest.ask(&format!("acknowledge {pid}"));
    }
    assert_eq!(guest.generation(), 0);
}

pub fn exits_are_told_until_acknowledged() {
    const PROCESSES: i32 = 50;
    let guest = Guest::start("exits", As::ProcessOne);
    // They end while no worker, or another one, runs: each waits for a writer of the gate.
    let gate = guest.path("gate");
    mkfifo(&gate, Mode::S_IRWXU).unwrap();
    let waiting = |status| guest.launch(&format!(": <{}; exit {status}", gate.display()));
    let expected: BTreeMap<i32, i32> = (0..PROCESSES).map(|status| (waiting(status), status)).collect();
    let killed = guest.launch("exec sleep 100");
    kill_inside(&guest, killed, "KILL");
    assert_eq!(guest.ask("next_exit"), format!("{killed} 137"));
    guest.ask(&format!("acknowledge {killed}"));

    // A real-time signal has no name, but a status.
    let realtime = guest.launch("exec sleep 100");
    kill_inside(&guest, realtime, "40");
    assert_eq!(guest.ask("next_exit"), format!("{realtime} {}", 128 + 40));
    guest.ask(&format!("acknowledge {realtime}"));

    guest.signal("worker", Signal::SIGKILL);
    let _open = fs::OpenOptions::new().read(true).write(true).open(&gate).unwrap();
    for _ in 0..3 {
        let told: BTreeMap<i32, i32> = (0..PROCESSES)
            .map(|_| {
                let answer = guest.ask_again("next_exit");
                let (pid, status) = answer.split_once(' ').unwrap();
                (pid.parse().unwrap(), status.parse().unwrap())
            })
            .collect();
        assert_eq!(told, expected);
        guest.crash_worker();
    }
    for pid in expected.keys() {
        guest.ask(&format!("acknowledge {pid}"));
    }
    guest.crash_worker();
    // Nothing is left: the next exit is that of a process made now.
    let last = guest.launch("exit 99");
    assert_eq!(guest.ask("next_exit"), format!("{last} 99"));
}

pub fn an_exit_before_its_launch_is_settled_is_kept() {
    let guest = Guest::start("early", As::ProcessOne);
    let pid = guest.ask("launch_late exit 41");
    assert_eq!(guest.ask("next_exit"), format!("{pid} 41"));
}

pub fn stored_descriptors_survive_workers() {
    let guest = Guest::start("store", As::ProcessOne);
    guest.ask("store 7 seven");
    guest.ask("store 18446744073709551615 last");
    guest.ask("store 7 replaced");
    guest.crash_worker();
    assert_eq!(guest.ask("stored 7"), "replaced");
    assert_eq!(guest.ask("stored 18446744073709551615"), "last");
    guest.ask("forget 7");
    guest.ask("forget 12345");
    guest.crash_worker();
    assert_eq!(guest.ask("stored 7"), "nothing");
    assert_eq!(guest.ask("stored 18446744073709551615"), "last");
}

pub fn the_last_words_of_a_worker_that_read_nothing_are_heard() {
    let guest = Guest::start("last", As::ProcessOne);
    let unread = guest.path("unread");
    let init = Pid::from_raw(guest.init_pid());
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| guest.ask(&format!("last_words {} heard", unread.display())));
        until("something unread", || unread.exists().then_some(()));
        // So that the words are still unread themselves when their speaker is gone.
        kill(init, Signal::SIGSTOP).unwrap();
        assert_eq!(asked.join().unwrap(), "");
        kill(init, Signal::SIGCONT).unwrap();
    });
    assert_eq!(guest.ask_again("stored 9"), "heard");
    assert!(guest.ask("next_exit").ends_with(" 7"));
}

pub fn connections_wait_while_no_worker_runs() {
    let guest = Guest::start("backlog", As::ProcessOne);
    // Provoke the pause between restarts, so that there is a time without a worker.
    for _ in 0..8 {
        guest.crash_worker();
    }
    guest.signal("worker", Signal::SIGKILL);
    until("a time without a worker", || {
        let left = children(guest.init_pid());
        left.is_empty().then_some(())
    });
    let start = Instant::now();
    let mut streams: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(guest.path("rpc.sock")).unwrap()).collect();
    let connected = start.elapsed();
    assert!(
        children(guest.init_pid()).is_empty(),
        "the worker came back too soon for the test to mean anything"
    );
    for stream in &mut streams {
        writeln!(stream, "generation").unwrap();
    }
    for mut stream in streams {
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        assert_eq!(answer.trim(), "9");
    }
    println!("     100 connects without a worker {connected:.2?}, answered after {:.2?}", start.elapsed());
}

pub fn ten_thousand_zombies_are_reaped_in_bounded_memory() {
    const ZOMBIES: usize = 10_000;
    let guest = Guest::start("storm", As::ProcessOne);
    let init = guest.init_pid();
    // It never waits, so its children stay until it dies, and then are init's all at once.
    let storm = std::env::current_exe().unwrap();
    let made = guest.path("made");
    let parent = guest.launch(&format!("exec {} storm {ZOMBIES} {}", storm.display(), made.display()));
    until("all children", || made.exists().then_some(()));
    let zombies = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let states = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        states.filter(|text| text.contains(") Z ")).count()
    };
    until("ten thousand zombies", || (zombies() >= ZOMBIES).then_some(()));
    let before = kilobytes(init, "status", "VmRSS:");

    let start = Instant::now();
    kill_inside(&guest, parent, "KILL");
    until("an init without zombies", || (children(init).len() == 2).then_some(()));
    println!("     {ZOMBIES} zombies reaped in {:.2?}", start.elapsed());
    assert_eq!(guest.ask("next_exit"), format!("{parent} 137"));
    let grown = kilobytes(init, "status", "VmRSS:").saturating_sub(before);
    assert!(grown <= 256, "init grew by {grown} KiB");
    assert_eq!(guest.generation(), 0);
}

pub fn garbage_from_the_worker_is_dropped() {
    let guest = Guest::start("garbage", As::ProcessOne);
    assert_eq!(guest.ask("garbage"), "sent");
    let pid = guest.launch("exit 5");
    assert_eq!(guest.ask("next_exit"), format!("{pid} 5"));
    assert_eq!(guest.generation(), 0);
}

pub fn a_silent_worker_is_aborted() {
    let guest = Guest::start("silent", As::ProcessOne);
    let kept = guest.launch("exec sleep 100");
    let mut stream = UnixStream::connect(guest.path("rpc.sock")).unwrap();
    writeln!(stream, "hang").unwrap();
    let start = Instant::now();
    until("the next worker", || (guest.generation() == 1).then_some(()));
    let elapsed = start.elapsed();
    assert!((9..15).contains(&elapsed.as_secs()), "{elapsed:?}");
    println!("     silent worker replaced after {elapsed:.2?}");
    kill_inside(&guest, kept, "TERM");
    assert_eq!(guest.ask("next_exit"), format!("{kept} 143"));
}

pub fn a_worker_ends_everything_by_a_message() {
    let mut guest = Guest::start("end", As::ProcessOne);
    launch_stubborn(&guest);
    let start = Instant::now();
    // The answer may be overtaken.
    guest.ask("shutdown");
    let status = guest.ended();
    // reboot(2) in a PID namespace ends it, and its process 1 as if by SIGINT, which unshare passes on.
    assert_eq!(status.signal(), Some(2), "{status}");
    assert!((2..5).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert!(guest.log().contains("powering off"));
}

pub fn a_subreaper_ends_only_its_own() {
    let mut guest = Guest::start("subreaper", As::Subreaper);
    let mut stranger = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let stubborn = launch_stubborn(&guest);
    let willing = guest.launch("exec sleep 100");
    assert_eq!(guest.ask("generation"), "0");
    kill(Pid::from_raw(guest.init_pid()), Signal::SIGTERM).unwrap();
    let status = guest.ended();
    assert_eq!(status.code(), Some(0), "{status}");
    for pid in [stubborn, willing] {
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
    assert!(!guest.path("rpc.sock").exists());
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// A process that SIGTERM does not end.
fn launch_stubborn(guest: &Guest) -> i32 {
    let ready = guest.path("ready");
    let pid = guest.launch(&format!("trap '' TERM; : > {}; while :; do sleep 0.1; done", ready.display()));
    until("the trap", || ready.exists().then_some(()));
    pid
}

/// Signals a process by its number in the guest.
fn kill_inside(guest: &Guest, pid: i32, signal: &str) {
    let target = until("the process", || {
        children(guest.init_pid()).into_iter().find(|outer| {
            let status = fs::read_to_string(format!("/proc/{outer}/status")).unwrap_or_default();
            let inner = status.lines().find(|line| line.starts_with("NSpid:"));
            inner.and_then(|line| line.split_whitespace().last()) == Some(pid.to_string().as_str())
        })
    });
    let killed =
        std::process::Command::new("kill").args([&format!("-{signal}"), &target.to_string()]).status();
    assert!(killed.unwrap().success());
}
