//! `events` and `stats`: a container's statistics, once or at intervals, and its OOM kills as they happen.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rustjail::cgroup::{Cgroup, OomEvents};
use serde_json::{Value, json};

use super::{Command, print};
use crate::{
    arguments::{Arguments, Flag, switch, value},
    cgroups,
    context::Context,
    error::Error,
    stats,
    status::Status,
    store::Container,
};

const FLAGS: &[Flag] = &[
    value(&["interval"], "time between two looks (default 5s)"),
    switch(&["stats"], "show the statistics once and end"),
];

pub const EVENTS: Command = Command {
    name: "events",
    about: "show statistics and OOM kills of a container as they come",
    usage: "<container-id>",
    flags: &[FLAGS],
    operands: (1, 1),
    flags_end: usize::MAX,
    failure: 1,
    run: events,
};

pub const STATS: Command =
    Command { name: "stats", about: "show the statistics of a container", flags: &[], run: stats, ..EVENTS };

fn events(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    if arguments.has("stats") {
        return stats(context, arguments);
    }
    let interval = interval(arguments.get("interval").unwrap_or("5s"))?;
    let (id, group, init) = find(context, arguments)?;
    let mut oom = group.oom_events(0)?;
    let mut next = Instant::now() + interval;
    loop {
        let timeout = next.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let (ended, killed) = wait(&init, oom.as_ref(), timeout)?;
        // The kill that ended it was counted before it ended, told or not; and its group may be gone already.
        let kills = oom.as_mut().filter(|_| killed || ended).map(OomEvents::take).transpose();
        for _ in 0..kills.or_else(|error| if ended { Ok(None) } else { Err(error) })?.unwrap_or(0) {
            print(&line("oom", &id, None))?;
        }
        if ended {
            return Ok(0);
        }
        if Instant::now() >= next {
            next += interval;
            print(&line("stats", &id, Some(stats::document(&group.stats()?))))?;
        }
    }
}

fn stats(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let (id, group, _init) = find(context, arguments)?;
    print(&line("stats", &id, Some(stats::document(&group.stats()?))))?;
    Ok(0)
}

/// A running container's group and init.
fn find(context: &Context, arguments: &Arguments) -> Result<(String, Cgroup, OwnedFd), Error> {
    let container = Container::open(&context.root, arguments.id())?;
    let record = container.record()?;
    let init = record.as_ref().and_then(|record| record.init.as_ref()?.pidfd());
    let group = record.as_ref().map(cgroups::open).transpose()?.flatten();
    match (group, init) {
        (Some(group), Some(init)) => Ok((container.id, group, init)),
        _ => {
            Err(Error::State { problem: "container not running", id: container.id, status: Status::Stopped })
        }
    }
}

/// Whether the init has ended, and whether there may be OOM kills.
fn wait(init: &OwnedFd, oom: Option<&OomEvents>, timeout: PollTimeout) -> Result<(bool, bool), Error> {
    let mut fds = vec![PollFd::new(init.as_fd(), PollFlags::POLLIN)];
    fds.extend(oom.map(|oom| PollFd::new(oom.as_fd(), PollFlags::POLLIN)));
    match poll(&mut fds, timeout) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok((false, false)),
        Err(errno) => return Err(Error::io("wait for", "the container's events")(errno)),
    }
    let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(true));
    Ok((ready.next().unwrap_or(false), ready.next().unwrap_or(false)))
}

fn line(kind: &str, id: &str, data: Option<Value>) -> String {
    match data {
        Some(data) => format!("{}\n", json!({"type": kind, "id": id, "data": data})),
        None => format!("{}\n", json!({"type": kind, "id": id})),
    }
}

/// `5s`, `100ms`, `1m`; a bare number means nothing to runc either.
fn interval(text: &str) -> Result<Duration, Error> {
    let split = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let duration = number.parse().ok().and_then(|number: u32| match unit {
        "ms" => Some(Duration::from_millis(number.into())),
        "s" => Some(Duration::from_secs(number.into())),
        "m" => Some(Duration::from_secs(u64::from(number) * 60)),
        "h" => Some(Duration::from_secs(u64::from(number) * 3600)),
        _ => None,
    });
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| Error::Usage(format!("--interval {text:?} is not a time as 5s or 100ms")))
}
