//! What the kernel tells of a group: kills for want of memory, pressure, the last exit.

use std::{
    fs,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, poll};
use rustjail::cgroup::{CgroupError, OomEvents, Resource, Share};

use crate::group::{Group, has_v1};

/// Counts kills until there were `wanted`; each look must have been announced.
pub fn await_kills(events: &mut OomEvents, wanted: u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut kills = 0;
    while kills < wanted {
        assert!(Instant::now() < deadline, "{kills} of {wanted} kills");
        if poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], 1000_u16) == Ok(1) {
            kills += events.take().unwrap();
        }
    }
    assert_eq!(kills, wanted);
}

#[test]
fn the_memory_limit_kills_and_says_so() {
    if !has_v1("memory") {
        return;
    }
    let group = Group::new(r#"{"memory": {"limit": 16777216, "swap": 16777216}}"#);
    let mut events = group.group.oom_events(0).unwrap().unwrap();
    assert_eq!(poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], 0_u8), Ok(0));
    assert_eq!(group.run("true").status.code(), Some(0));
    let mut child = group.start(r#"exec perl -e 'my $x = "a" x (64 << 20); print length $x'"#);
    await_kills(&mut events, 1);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    let memory = group.group.stats().unwrap().memory.unwrap();
    assert_eq!(memory.memory.limit, 16_777_216);
    assert_eq!(memory.oom_kills, 1);
    assert!(memory.memory.max_usage > 8 << 20, "{memory:?}");
    // And then it is quiet.
    let deadline = Instant::now() + Duration::from_secs(30);
    while poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], 50_u8) == Ok(1) {
        assert_eq!(events.take().unwrap(), 0);
        assert!(Instant::now() < deadline, "the descriptor stays ready");
    }
}

/// More kills than wake-ups, in the container's group and in one that the workload made below.
#[test]
fn every_kill_counts() {
    if !has_v1("memory") {
        return;
    }
    const KILLS: u64 = 12;
    let group = Group::new(r#"{"memory": {"limit": 33554432, "swap": 33554432}}"#);
    let below = format!("/sys/fs/cgroup/memory/{}/below", group.path.as_path().display());
    fs::create_dir(&below).unwrap();
    let mut events = group.group.oom_events(0).unwrap().unwrap();
    let hog = r#"perl -e 'my $x = "a" x (96 << 20); print length $x'"#;
    let script = format!(
        "for i in $(seq {half}); do {hog}; done; echo $$ > {below}/tasks; for i in $(seq {half}); do {hog}; done; exit 0",
        half = KILLS / 2
    );
    let mut child = group.start(&script);
    // Nobody looks until all are dead: the events have coalesced by then.
    assert_eq!(child.wait().unwrap().code(), Some(0));
    await_kills(&mut events, KILLS);
    fs::remove_dir(&below).unwrap();
    assert_eq!(events.take().unwrap(), 0);
}

#[test]
fn a_subscription_outlives_its_group_quietly() {
    let group = Group::new("{}");
    let Some(mut events) = group.group.oom_events(0).unwrap() else { return };
    group.group.delete().unwrap();
    assert_eq!(events.take().unwrap(), 0);
}

#[test]
fn pressure_is_told() {
    let group = Group::new("{}");
    // Any other window takes CAP_SYS_RESOURCE.
    let (stall, window) = (Duration::from_millis(20), Duration::from_secs(2));
    let trigger = group.group.pressure_trigger(Resource::Cpu, Share::Some, stall, window).unwrap();
    let Some(trigger) = trigger else {
        return;
    };
    let impossible = group.group.pressure_trigger(Resource::Cpu, Share::Some, window, stall).unwrap_err();
    assert!(matches!(impossible, CgroupError::Write { .. }), "{impossible}");
    // More runners than processors.
    let runners = std::thread::available_parallelism().unwrap().get() * 3;
    let children: Vec<_> = (0..runners).map(|_| group.start("while :; do :; done")).collect();
    assert_eq!(poll(&mut [PollFd::new(trigger.as_fd(), PollFlags::POLLPRI)], 20_000_u16), Ok(1));
    assert!(group.group.stats().unwrap().cpu.unwrap().pressure.unwrap().some.total > 0);
    group.group.kill().unwrap();
    children.into_iter().for_each(|mut child| assert_eq!(child.wait().unwrap().code(), Some(137)));
}

#[test]
fn a_group_is_destroyed_in_one_call() {
    let group = Group::new("{}");
    let mut child = group.start("sleep 1000 & sleep 1000 & exec sleep 1000");
    assert!(!group.group.wait_until_empty(Duration::from_millis(1)).unwrap());
    group.group.destroy(Duration::from_secs(30)).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(137));
    assert!(group.group.wait_until_empty(Duration::ZERO).unwrap());
}
