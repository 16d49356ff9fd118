//! `create`: makes a container that waits for its start.

use super::Command;
use crate::{
    arguments::Arguments,
    context::Context,
    create::{self, Starter},
    error::Error,
};

pub const COMMAND: Command = Command {
    name: "create",
    about: "make a container whose program waits for `start`",
    usage: "<container-id>",
    flags: &[create::FLAGS],
    operands: (1, 1),
    flags_end: usize::MAX,
    failure: 1,
    run,
};

fn run(context: &Context, arguments: &Arguments) -> Result<u8, Error> {
    create::create(context, arguments, Starter::Later).map(|_created| 0)
}
