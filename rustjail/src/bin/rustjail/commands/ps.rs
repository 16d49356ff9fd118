//! `ps`: the processes of a container.

use std::process::Command as Program;

use super::{Command, print};
use crate::{
    arguments::{Arguments, Flag, value},
    cgroups,
    context::Context,
    error::Error,
    status::Status,
    store::Container,
};

const FLAGS: &[Flag] = &[value(&["format", "f"], "table (default), as ps(1) has it, or json: the ids")];

pub const COMMAND: Command = Command {
    name: "ps",
    about: "show the processes of a container",
    usage: "<container-id> [arguments of ps]",
    flags: &[FLAGS],
    operands: (1, usize::MAX),
    flags_end: 1,
    failure: 1,
    run,
};

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let container = Container::open(&context.root, arguments.id())?;
    let record = container.record()?;
    if container.status(record.as_ref())? == Status::Stopped {
        return Err(Error::State {
            problem: "container not running",
            id: container.id,
            status: Status::Stopped,
        });
    }
    let group = record.as_ref().map(cgroups::open).transpose()?.flatten();
    let pids = match &group {
        Some(group) => group.pids()?,
        None => record.iter().filter_map(|record| record.init.as_ref()).map(|init| init.pid).collect(),
    };
    // They may also come after the operands, unless they are for ps.
    let (format, rest) = match (arguments.get("format"), arguments.operands.get(1..).unwrap_or_default()) {
        (None, [flag, format, rest @ ..]) if flag == "--format" || flag == "-f" && format == "json" => {
            (Some(format.as_str()), rest)
        }
        (None, [flag, rest @ ..]) if flag.starts_with("--format=") => {
            (flag.split_once('=').map(|f| f.1), rest)
        }
        (format, rest) => (format, rest),
    };
    match format {
        None | Some("table") => print(&table(&pids, rest)?)?,
        Some("json") => {
            print(&format!("{}\n", serde_json::to_string(&pids).map_err(Error::json("the list"))?))?
        }
        Some(other) => return Err(Error::Usage(format!("--format {other:?} is not table or json"))),
    }
    Ok(0)
}

/// The lines of ps(1) about `pids`; users give its options and expect its columns.
fn table(pids: &[i32], options: &[String]) -> Result<String, Error> {
    let options = match options {
        [separator, rest @ ..] if separator == "--" => rest,
        options => options,
    };
    let options = if options.is_empty() { &["-ef".to_owned()][..] } else { options };
    let output = Program::new("ps").args(options).output().map_err(Error::io("run", "ps"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Usage(format!("ps {}: {said}", options.join(" "))));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let title = lines.next().unwrap_or_default();
    let column = title
        .split_whitespace()
        .position(|name| name == "PID")
        .ok_or_else(|| Error::Usage("the output of ps has no PID column".into()))?;
    let ours = lines.filter(|line| {
        let pid = line.split_whitespace().nth(column).and_then(|pid| pid.parse().ok());
        pid.is_some_and(|pid| pids.contains(&pid))
    });
    Ok([title].into_iter().chain(ours).map(|line| format!("{line}\n")).collect())
}
