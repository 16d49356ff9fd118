//! `run`: create, start, wait and delete in one process.

use std::os::fd::AsFd;

use super::Command;
use crate::{
    arguments::{Arguments, Flag, switch},
    console::Console,
    context::Context,
    create::{self, Created, Starter},
    error::Error,
    foreground,
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
    let detached = arguments.has("detach");
    let mut created = create::create(context, arguments, Starter::Here)?;
    // Before the program runs, so that none which is meant for it is lost.
    let prepared = if detached { Ok(None) } else { prepare(&mut created).map(Some) };
    let attached = prepared.and_then(|attached| {
        create::start(created.process.link.as_fd(), &created.container, &created.record)?;
        create::after_start(&created.container, &created.record)?;
        Ok(attached)
    });
    let attached = match attached {
        Ok(None) => return Ok(0),
        Ok(Some(attached)) => attached,
        Err(error) => {
            let _ = created.remove(context);
            return Err(error);
        }
    };
    created.container.unlock();
    let (signals, console) = attached;
    // The program is at work, and there is nothing to do but to wait.
    drop(std::mem::take(&mut created.sealed));
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

fn prepare(created: &mut Created) -> Result<(Signals, Option<Console>), Error> {
    let signals = Signals::take()?;
    let console = created.process.console.take().map(Console::new).transpose()?;
    Ok((signals, console))
}
