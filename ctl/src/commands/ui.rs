//! What people see: results on standard output, everything else on standard error.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal, Write},
};

use super::Error;

/// Whether standard error is a terminal that may be coloured (no-color.org).
fn coloured() -> bool {
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn prefix(colour: &str, text: &str) -> String {
    if coloured() { format!("\x1b[1;{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Says why the command failed.
pub(super) fn error(error: &dyn Display) {
    // The text may be the guest's, which must not be able to play tricks on the user's terminal.
    let text: String =
        error.to_string().chars().filter(|letter| !letter.is_control() || "\n\t".contains(*letter)).collect();
    say(&format!("{} {text}", prefix("31", "berthctl:")));
}

/// Says something the user should know.
pub(super) fn warning(text: &dyn Display) {
    say(&format!("{} {text}", prefix("33", "berthctl:")));
}

/// Shows what is being waited for, on a terminal only; the next text replaces it, an empty one takes it away.
pub(super) fn progress(text: &str) {
    if coloured() {
        let text = if text.is_empty() { String::new() } else { format!("\x1b[2m{text}\x1b[0m") };
        let _ = write!(io::stderr(), "\r\x1b[2K{text}");
    }
}

/// A line on standard error. That it cannot be written is nothing we could tell anybody.
pub(super) fn say(text: &str) {
    progress("");
    let _ = writeln!(io::stderr(), "{text}");
}

/// A result on standard output.
pub(super) fn print(text: &str) -> Result<i32, Error> {
    let written = writeln!(io::stdout(), "{text}").and_then(|()| io::stdout().flush());
    written.map_err(|source| crate::stdio::Error::Local { action: "write to standard output", source })?;
    Ok(0)
}
