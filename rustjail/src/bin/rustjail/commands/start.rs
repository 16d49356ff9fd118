//! `start`: has a created container run its program.

use std::os::fd::AsFd;

use super::Command;
use crate::{
    arguments::Arguments, context::Context, error::Error, init::Init, launch, status::Status,
    store::Container,
};

pub const COMMAND: Command = Command {
    name: "start",
    about: "run the program of a created container",
    usage: "<container-id>",
    flags: &[],
    operands: (1, 1),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let container = Container::open_locked(&context.root, arguments.id())?;
    let record = container.record()?;
    let problem = match container.status(record.as_ref())? {
        Status::Created => {
            if let (Some(link), Some(record)) = (container.connect()?, &record) {
                if let Err(error) = launch::start(link.as_fd(), &container, record) {
                    drop(link);
                    record.init.iter().for_each(Init::outlive);
                    return Err(error);
                }
                container.remove_start();
                return launch::after_start(&container, record).map(|()| 0);
            }
            // It was killed in between.
            "cannot start a container that has stopped"
        }
        Status::Stopped => "cannot start a container that has stopped",
        Status::Running => "cannot start an already running container",
        Status::Paused => "cannot start a container in the paused state",
        Status::Creating => "cannot start a container in the creating state",
    };
    let status = container.status(record.as_ref())?;
    Err(Error::State { problem, id: container.id.clone(), status })
}
