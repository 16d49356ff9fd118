//! `kill`: sends a signal to a container's init, or to all its processes.

use std::os::fd::AsFd;

use nix::sys::signal::Signal;
use rustjail::sys::pidfd;

use super::Command;
use crate::{
    arguments::{Arguments, Flag, switch},
    cgroups,
    context::Context,
    error::Error,
    status::Status,
    store::{Container, Record},
};

const FLAGS: &[Flag] = &[switch(&["all", "a"], "signal every process of the container")];

pub const COMMAND: Command = Command {
    name: "kill",
    about: "send a signal (default SIGTERM) to a container's init",
    usage: "<container-id> [signal]",
    flags: &[FLAGS],
    operands: (1, 2),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let signal = number(arguments.operands.get(1).map_or("SIGTERM", String::as_str))?;
    let container = Container::open(&context.root, arguments.id())?;
    let record = container.record()?;
    if let (true, Some(record)) = (arguments.has("all"), &record) {
        return signal_all(record, signal).map(|()| 0);
    }
    let init = record.as_ref().and_then(|record| record.init.as_ref()?.pidfd());
    let Some(init) = init else {
        return Err(Error::State {
            problem: "container not running",
            id: container.id,
            status: Status::Stopped,
        });
    };
    pidfd::signal(init.as_fd(), signal).map_err(Error::io("signal the init of", &container.id))?;
    Ok(0)
}

/// Each by a descriptor, so that none which takes over the number of one that ended is hit.
fn signal_all(record: &Record, signal: i32) -> Result<(), Error> {
    let Some(group) = cgroups::open(record)? else { return Ok(()) };
    if signal == libc::SIGKILL {
        return Ok(group.kill()?);
    }
    for pid in group.pids()? {
        if let Ok(process) = pidfd::open(pid) {
            // One that ended meanwhile needs none.
            let _ = pidfd::signal(process.as_fd(), signal);
        }
    }
    Ok(())
}

/// 0 only asks whether there is somebody: `9`, `KILL`, `SIGKILL`, `rtmin+3`.
fn number(text: &str) -> Result<i32, Error> {
    let unknown = || Error::Usage(format!("unknown signal {text:?}"));
    if let Ok(number) = text.parse() {
        return (0..=libc::SIGRTMAX()).contains(&number).then_some(number).ok_or_else(unknown);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Ok(signal) = format!("SIG{name}").parse::<Signal>() {
        return Ok(signal as i32);
    }
    let real_time = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(above), _) => offset(above, '+').map(|above| REAL_TIME_MIN + above),
        (_, Some(below)) => offset(below, '-').map(|below| libc::SIGRTMAX() - below),
        _ => None,
    };
    real_time.filter(|number| (REAL_TIME_MIN..=libc::SIGRTMAX()).contains(number)).ok_or_else(unknown)
}

/// As the shell's `kill` and runc have it; each C library keeps a few below its own SIGRTMIN for itself.
const REAL_TIME_MIN: i32 = 34;

fn offset(text: &str, sign: char) -> Option<i32> {
    if text.is_empty() { Some(0) } else { text.strip_prefix(sign)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn signals_by_number_and_by_name() {
        for (text, signal) in [
            ("9", 9),
            ("KILL", 9),
            ("sigterm", 15),
            ("SIGRTMIN+3", 37),
            ("RTMAX-1", 63),
            ("RTMIN", 34),
            ("64", 64),
        ] {
            assert_eq!(number(text).unwrap(), signal, "{text}");
        }
        for text in ["65", "-9", "", "SIG", "NOSUCH", "RTMIN+31", "RTMINx"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
