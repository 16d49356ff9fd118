//! `update`: changes the limits of a container.

use std::{fs, io};

use oci_spec::runtime::LinuxResources;
use serde_json::{Map, Value, json};

use super::Command;
use crate::{
    arguments::{Arguments, Flag, value},
    cgroups,
    context::Context,
    error::Error,
    status::Status,
    store::Container,
    systemd,
};

const FLAGS: &[Flag] = &[
    value(
        &["resources", "r"],
        "file with a document of limits, - for standard input; no other flag counts then",
    ),
    value(&["blkio-weight"], "block I/O weight, 10 to 1000"),
    value(&["cpu-period"], "length of a CPU period in microseconds"),
    value(&["cpu-quota"], "CPU time for each period in microseconds"),
    value(&["cpu-burst"], "CPU time that may be saved up in microseconds"),
    value(&["cpu-share"], "CPU shares"),
    value(&["cpu-rt-period"], "length of a real-time period in microseconds"),
    value(&["cpu-rt-runtime"], "real-time CPU time for each period in microseconds"),
    value(&["cpuset-cpus"], "CPUs to run on"),
    value(&["cpuset-mems"], "memory nodes to allocate from"),
    value(&["cpu-idle"], "1: run when nothing else does"),
    value(&["kernel-memory"], "taken and ignored: the kernel has no such limit any more"),
    value(&["kernel-memory-tcp"], "TCP buffer memory in bytes"),
    value(&["memory"], "memory in bytes"),
    value(&["memory-reservation"], "memory in bytes that is left to it when there is little"),
    value(&["memory-swap"], "memory and swap in bytes"),
    value(&["pids-limit"], "number of tasks"),
];

pub const COMMAND: Command = Command {
    name: "update",
    about: "change the limits of a container",
    usage: "<container-id>",
    flags: &[FLAGS],
    operands: (1, 1),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

/// What a flag's value is.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Number,
    /// A number that may end in k, m, g or t.
    Bytes,
    Text,
}

/// Which field of runtime-spec's `linux.resources` a flag sets.
const FIELDS: [(&str, &str, &str, Unit); 15] = [
    ("blkio-weight", "blockIO", "weight", Unit::Number),
    ("cpu-period", "cpu", "period", Unit::Number),
    ("cpu-quota", "cpu", "quota", Unit::Number),
    ("cpu-burst", "cpu", "burst", Unit::Number),
    ("cpu-share", "cpu", "shares", Unit::Number),
    ("cpu-rt-period", "cpu", "realtimePeriod", Unit::Number),
    ("cpu-rt-runtime", "cpu", "realtimeRuntime", Unit::Number),
    ("cpuset-cpus", "cpu", "cpus", Unit::Text),
    ("cpuset-mems", "cpu", "mems", Unit::Text),
    ("cpu-idle", "cpu", "idle", Unit::Number),
    ("kernel-memory-tcp", "memory", "kernelTCP", Unit::Bytes),
    ("memory", "memory", "limit", Unit::Bytes),
    ("memory-reservation", "memory", "reservation", Unit::Bytes),
    ("memory-swap", "memory", "swap", Unit::Bytes),
    ("pids-limit", "pids", "limit", Unit::Number),
];

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let resources = match arguments.get("resources") {
        Some(path) => read(path)?,
        None => from_flags(arguments)?,
    };
    let container = Container::open_locked(&context.root, arguments.id())?;
    let record = container.record()?;
    let status = container.status(record.as_ref())?;
    let group = match status {
        Status::Stopped | Status::Creating => None,
        _ => record.as_ref().map(cgroups::open).transpose()?.flatten(),
    };
    match group {
        Some(group) => {
            match record.and_then(|record| record.unit) {
                Some(unit) => systemd::update(&group, &unit, &resources)?,
                None => group.update(&resources)?,
            }
            Ok(0)
        }
        None => Err(Error::State { problem: "container not running", id: container.id, status }),
    }
}

fn read(path: &str) -> Result<LinuxResources, Error> {
    let text = match path {
        "-" => io::read_to_string(io::stdin()).map(String::into_bytes),
        path => fs::read(path),
    };
    serde_json::from_slice(&text.map_err(Error::io("read", path))?).map_err(Error::json(path))
}

fn from_flags(arguments: &Arguments) -> Result<LinuxResources, Error> {
    let mut document = Map::new();
    for (flag, section, field, unit) in FIELDS {
        let Some(text) = arguments.get(flag).filter(|text| !text.is_empty()) else { continue };
        let value = match unit {
            Unit::Number => text.parse::<i64>().ok().map(Value::from),
            Unit::Bytes => bytes(text).map(Value::from),
            Unit::Text => Some(text.into()),
        };
        let value = value.ok_or_else(|| Error::Usage(format!("--{flag} {text:?} is not a number")))?;
        let section = document.entry(section).or_insert_with(|| json!({}));
        if let Value::Object(section) = section {
            section.insert(field.into(), value);
        }
    }
    serde_json::from_value(document.into()).map_err(Error::json("the flags of update"))
}

/// `512m` is 512 MiB; -1 is no limit.
fn bytes(text: &str) -> Option<i64> {
    if text == "-1" {
        return Some(-1);
    }
    let lower = text.to_ascii_lowercase();
    let plain = lower.trim_end_matches("ib").trim_end_matches('b');
    let split = plain.find(|character: char| !character.is_ascii_digit()).unwrap_or(plain.len());
    let (number, unit) = plain.split_at(split);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(line: &str) -> Result<Value, Error> {
        let arguments = Arguments::parse(&[FLAGS], usize::MAX, &mut line.split(' ').map(Into::into))?;
        Ok(serde_json::to_value(from_flags(&arguments)?).unwrap())
    }

    #[test]
    fn flags_become_resources() {
        assert_eq!(
            parse("--memory 512M --memory-swap=-1 --cpuset-cpus 0-1 --pids-limit 10 c --cpu-quota 5")
                .unwrap(),
            json!({"memory": {"limit": 536_870_912, "swap": -1},
                   "cpu": {"cpus": "0-1", "quota": 5}, "pids": {"limit": 10}})
        );
        for line in ["--memory x", "--memory 1q", "--cpu-share -1", "--pids-limit 1m", "--memory 9999999999t"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
