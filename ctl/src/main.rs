//! `berthctl`: see the library.

use std::process::ExitCode;

use berthctl::{cli::Cli, commands};
use clap::Parser;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => commands::main(cli),
        Err(error) => commands::usage(&error),
    }
}
