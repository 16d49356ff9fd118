//! `run`: create, start, wait and delete in one process.

use std::os::fd::AsFd;

use super::Command;
use crate::{
    arguments::{Arguments, Flag, switch},
    console::Console,
    context::Context,
    create::{self, Created, Starter},
    error::Error,
    foreground, launch,
    signals::Signals,
};

const FLAGS: &[Flag] = &[
    switch(&["detach", "d"], "leave the container running in the background"),
    switch(&["keep"], "do not delete the container when it has ended"),
    switch(&["no-subreaper"], "taken and ignored: only the init is waited for"),
];

pub const COMMAND: Command = Command {
    name: "run",
    about: "make a container and run its program",
    usage: "<container-id>",
    flags: &[create::FLAGS, FLAGS],
    operands: (1, 1),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    let mut created = create::create(context, arguments, Starter::Here)?;
    let (signals, console) = match begin(&mut created, arguments.has("detach")) {
        Ok(None) => return Ok(0),
        Ok(Some(attached)) => attached,
        Err(error) => {
            let _ = created.remove(context);
            return Err(error);
        }
    };
    created.container.unlock();
    // The program is at work, and there is nothing to do but to wait.
    drop(created.sealed.take());
    let status = foreground::attend(created.process.spawned.pidfd.as_fd(), console, &signals)?;
    if !arguments.has("keep") {
        match created.container.relock(&context.root) {
            Ok(()) => created.remove(context)?,
            // Somebody else has deleted it.
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(status)
}

/// Has the program run. Unless this command leaves it to itself: the signals that are meant for it since then, and the
/// terminal that is to be shown.
fn begin(created: &mut Created, detached: bool) -> Result<Option<(Signals, Option<Console>)>, Error> {
    let attached = match (created.signals.take(), detached) {
        (_, true) => None,
        (Some(signals), _) => Some((signals, None)),
        (None, _) => Some((Signals::take()?, created.process.console.take().map(Console::new).transpose()?)),
    };
    created.start()?;
    launch::after_start(&created.container, &created.record)?;
    Ok(attached)
}
