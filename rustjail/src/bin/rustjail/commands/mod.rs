//! The sub-commands: one file each, and the table that finds them.

use std::{ffi::OsString, io::Write};

use crate::{
    arguments::{Arguments, Flag},
    context::{self, Context},
    error::Error,
};

mod create;
mod delete;
mod events;
pub mod exec;
mod features;
mod kill;
mod list;
mod pause;
mod ps;
mod run;
mod spec;
mod start;
mod state;
mod update;

/// What a sub-command is.
#[derive(Debug)]
pub struct Command {
    name: &'static str,
    about: &'static str,
    /// Its operands, for people.
    usage: &'static str,
    /// The tables of its flags.
    flags: &'static [&'static [Flag]],
    /// The least and the most operands it takes.
    operands: (usize, usize),
    /// After so many, everything belongs to another program.
    flags_end: usize,
    /// The exit status when it fails.
    failure: u8,
    run: fn(&Context, &Arguments) -> Result<u8, Error>,
}

const COMMANDS: &[Command] = &[
    create::COMMAND,
    delete::COMMAND,
    events::EVENTS,
    exec::COMMAND,
    features::COMMAND,
    kill::COMMAND,
    list::COMMAND,
    pause::PAUSE,
    ps::COMMAND,
    pause::RESUME,
    run::COMMAND,
    spec::COMMAND,
    start::COMMAND,
    state::COMMAND,
    events::STATS,
    update::COMMAND,
];

/// What a shell gives a command that is not found.
const UNKNOWN: u8 = 3;

/// Runs the command line `words`; answers the exit status.
pub fn run(words: impl Iterator<Item = OsString>) -> u8 {
    let mut words = words.skip(1);
    // The name of the sub-command is the only operand up to there.
    let global = Arguments::parse(&[context::FLAGS], 1, &mut words);
    let (global, context) = match global.and_then(|global| Ok((Context::new(&global)?, global))) {
        Ok((context, global)) => (global, context),
        Err(error) => {
            crate::log::Log::default().error(&error);
            return 1;
        }
    };
    let name = global.operands.first().map(String::as_str);
    if global.has("version") {
        return print(&version()).map_or(1, |()| 0);
    }
    let Some(name) = name.filter(|name| !global.has("help") && *name != "help") else {
        return print(&overview()).map_or(1, |()| 0);
    };
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        context.log.error(format!("there is no command {name:?}: `rustjail --help` lists them"));
        return UNKNOWN;
    };
    match command.call(&context, &global, &mut words) {
        Ok(status) => status,
        Err(error) => {
            context.log.error(match command.name {
                "create" | "run" | "exec" => format!("{} failed: {error}", command.name),
                _ => error.to_string(),
            });
            command.failure
        }
    }
}

impl Command {
    fn call(
        &self,
        context: &Context,
        global: &Arguments,
        words: &mut dyn Iterator<Item = OsString>,
    ) -> Result<u8, Error> {
        let rest = global.operands.get(1..).unwrap_or_default().iter().map(OsString::from);
        let mut words = rest.chain(words);
        let flags = [self.flags, &[HELP]].concat();
        let arguments = Arguments::parse(&flags, self.flags_end, &mut words)?;
        if arguments.has("help") {
            return print(&self.help()).map(|()| 0);
        }
        let (least, most) = self.operands;
        let count = arguments.operands.len();
        if count < least || count > most {
            return Err(Error::Usage(format!("rustjail {} takes {}", self.name, self.usage)));
        }
        (self.run)(context, &arguments)
    }

    fn help(&self) -> String {
        let flags: String = self.flags.iter().flat_map(|table| table.iter()).map(describe).collect();
        format!("{}\n\nrustjail {} [flags] {}\n\n{flags}", self.about, self.name, self.usage)
    }
}

const HELP: &[Flag] = &[crate::arguments::switch(&["help", "h"], "show this")];

fn overview() -> String {
    let commands: String =
        COMMANDS.iter().map(|command| format!("  {:<10} {}\n", command.name, command.about)).collect();
    let flags: String = context::FLAGS.iter().map(describe).collect();
    format!(
        "rustjail makes and runs OCI containers.\n\nrustjail [flags] command [flags] [operands]\n\n{commands}\n{flags}"
    )
}

fn describe(flag: &Flag) -> String {
    let names: Vec<String> = flag
        .names
        .iter()
        .map(|name| if name.len() == 1 { format!("-{name}") } else { format!("--{name}") })
        .collect();
    format!("  {:<26} {}\n", names.join(", "), flag.about)
}

fn version() -> String {
    format!("rustjail version {}\nspec: {}\n", env!("CARGO_PKG_VERSION"), features::VERSION_MAX)
}

/// Writes to standard output.
fn print(text: &str) -> Result<(), Error> {
    std::io::stdout().write_all(text.as_bytes()).map_err(Error::io("write to", "standard output"))
}
