//! `pause` and `resume`: freezes and thaws all processes of a container.

use rustjail::cgroup::Cgroup;

use super::Command;
use crate::{
    arguments::Arguments, cgroups, context::Context, error::Error, status::Status, store::Container,
};

pub const PAUSE: Command = Command {
    name: "pause",
    about: "stop all processes of a container for a while",
    usage: "<container-id>",
    flags: &[],
    operands: (1, 1),
    flags_end: usize::MAX,
    failure: 1,
    run: pause,
};

pub const RESUME: Command =
    Command { name: "resume", about: "let the processes of a paused container go on", run: resume, ..PAUSE };

fn pause(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    change(context, arguments, "container not running or created", Cgroup::freeze, |status| {
        matches!(status, Status::Running | Status::Created)
    })
}

fn resume(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    change(context, arguments, "container not paused", Cgroup::thaw, |status| status == Status::Paused)
}

fn change(
    context: &Context,
    arguments: &Arguments,
    problem: &'static str,
    change: fn(&Cgroup) -> Result<(), rustjail::cgroup::CgroupError>,
    permits: fn(Status) -> bool,
) -> Result<u8, Error> {
    let container = Container::open_locked(&context.root, arguments.id())?;
    let record = container.record()?;
    let status = container.status(record.as_ref())?;
    let group = record.as_ref().filter(|_| permits(status)).map(cgroups::open).transpose()?.flatten();
    match group {
        Some(group) => change(&group).map(|()| 0).map_err(Into::into),
        None => Err(Error::State { problem, id: container.id, status }),
    }
}
