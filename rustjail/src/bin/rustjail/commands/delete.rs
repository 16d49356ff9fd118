//! `delete`: removes what a container that has ended left; with `--force`, ends it before.

use super::Command;
use crate::{
    arguments::{Arguments, Flag, switch},
    cgroups,
    context::Context,
    create::{destroy, end_init},
    error::Error,
    status::Status,
    store::Container,
};

const FLAGS: &[Flag] = &[switch(&["force", "f"], "kill it first; it need not exist either")];

pub const COMMAND: Command = Command {
    name: "delete",
    about: "remove a container that has ended",
    usage: "<container-id>",
    flags: &[FLAGS],
    operands: (1, 1),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let force = arguments.has("force");
    if force {
        end_creation(context, arguments.id())?;
    }
    let container = match Container::open_locked(&context.root, arguments.id()) {
        Err(Error::NotFound { .. }) if force => return Ok(0),
        result => result?,
    };
    let Some(record) = container.record()? else {
        // Its maker died before there was anything but the directory.
        return container.remove().map(|()| 0);
    };
    let status = container.status(Some(&record))?;
    // One that is still being created, with nobody at it, has an init that was let go: its maker died right after.
    if !force && matches!(status, Status::Running | Status::Paused | Status::Creating) {
        let problem = "cannot delete a container that is not stopped";
        return Err(Error::State { problem, id: container.id, status });
    }
    let group = cgroups::open(&record)?;
    destroy(context, container, &record, group).map(|()| 0)
}

/// A process that got stuck before its program keeps its container locked, by the descriptor it has from a maker that may
/// be gone. By its end either lets go of it.
fn end_creation(context: &Context, id: &str) -> Result<(), Error> {
    let container = match Container::open(&context.root, id) {
        Err(Error::NotFound { .. }) => return Ok(()),
        result => result?,
    };
    if let Some(record) = container.record()?
        && !record.complete
        && container.is_being_changed()
    {
        return end_init(&record, &format!("container {id:?}"));
    }
    Ok(())
}
