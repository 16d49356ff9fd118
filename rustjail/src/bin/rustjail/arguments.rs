//! Command lines as runc takes them.
//!
//! A flag has one or two dashes, and its value follows `=` or comes next; flags may stand before and after the
//! operands until as many operands are there as the command says, from where on everything belongs to the
//! program to be run. `--` ends the flags too. What is accepted is a table, so a parse costs a walk over it.

use std::ffi::OsString;

use crate::error::Error;

/// One flag of a command.
#[derive(Debug)]
pub struct Flag {
    /// The long one first.
    pub names: &'static [&'static str],
    /// Whether a value belongs to it.
    pub takes: Takes,
    /// For `--help`.
    pub about: &'static str,
}

/// What follows a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Nothing, but `=true` and `=false` are taken.
    Nothing,
    /// A value.
    Value,
}

/// A flag that is there or not.
pub const fn switch(names: &'static [&'static str], about: &'static str) -> Flag {
    Flag { names, takes: Takes::Nothing, about }
}

/// A flag with a value.
pub const fn value(names: &'static [&'static str], about: &'static str) -> Flag {
    Flag { names, takes: Takes::Value, about }
}

/// A parsed command line.
#[derive(Debug, Default)]
pub struct Arguments {
    given: Vec<(&'static str, String)>,
    /// What is not a flag, in order.
    pub operands: Vec<String>,
}

impl Arguments {
    /// Reads `line`; flags are recognised until `operands` operands were found.
    pub fn parse(
        flags: &[&'static [Flag]],
        operands: usize,
        line: &mut dyn Iterator<Item = OsString>,
    ) -> Result<Self, Error> {
        let mut parsed = Self::default();
        while parsed.operands.len() < operands {
            let Some(word) = line.next() else { return Ok(parsed) };
            let word = text(word)?;
            match word.strip_prefix("--").or_else(|| word.strip_prefix('-')) {
                Some("") if word == "--" => break,
                None | Some("") => parsed.operands.push(word),
                Some(flag) => parsed.take(flags, flag, line)?,
            }
        }
        for word in line {
            parsed.operands.push(text(word)?);
        }
        Ok(parsed)
    }

    fn take(
        &mut self,
        flags: &[&'static [Flag]],
        written: &str,
        line: &mut dyn Iterator<Item = OsString>,
    ) -> Result<(), Error> {
        let (name, attached) = match written.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (written, None),
        };
        let flag = flags
            .iter()
            .flat_map(|table| table.iter())
            .find(|flag| flag.names.contains(&name))
            .ok_or_else(|| Error::Usage(format!("flag provided but not defined: -{name}")))?;
        let value = match (flag.takes, attached) {
            (Takes::Nothing, None) => "true".to_owned(),
            (Takes::Nothing, Some(value)) => match value.as_str() {
                "true" | "1" => "true".to_owned(),
                "false" | "0" => "false".to_owned(),
                _ => return Err(Error::Usage(format!("--{name} is either there or not: {value:?}"))),
            },
            (Takes::Value, Some(value)) => value,
            (Takes::Value, None) => {
                let next = line.next().ok_or_else(|| Error::Usage(format!("--{name} needs a value")))?;
                text(next)?
            }
        };
        let canonical = flag.names.first().copied().unwrap_or_default();
        self.given.push((canonical, value));
        Ok(())
    }

    /// Whether the switch `name` is on.
    pub fn has(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }

    /// The value of `name` that was given last.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).last()
    }

    /// Every value of `name`.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.given.iter().filter(move |(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// The value of `name` as a number.
    pub fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, Error> {
        let parse = |text: &str| {
            text.parse().map_err(|_| Error::Usage(format!("--{name} {text:?} is not a number in its range")))
        };
        self.get(name).map(parse).transpose()
    }

    /// The container a command is about.
    pub fn id(&self) -> &str {
        self.operands.first().map(String::as_str).unwrap_or_default()
    }
}

fn text(word: OsString) -> Result<String, Error> {
    word.into_string()
        .map_err(|word| Error::Usage(format!("the argument {:?} is not valid UTF-8", word.display())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FLAGS: &[Flag] = &[value(&["bundle", "b"], ""), switch(&["detach", "d"], ""), value(&["env"], "")];

    fn parse(operands: usize, line: &str) -> Result<Arguments, Error> {
        Arguments::parse(&[FLAGS], operands, &mut line.split(' ').map(OsString::from))
    }

    #[test]
    fn flags_stand_before_and_after_the_id_in_every_form() {
        for line in ["--bundle x -d id", "-b=x id --detach", "id -bundle x -detach=true"] {
            let parsed = parse(usize::MAX, line).unwrap();
            assert_eq!((parsed.get("bundle"), parsed.has("detach"), parsed.id()), (Some("x"), true, "id"));
        }
        assert!(!parse(1, "-d -d=false id").unwrap().has("detach"));
    }

    #[test]
    fn the_programs_own_flags_are_left_alone() {
        let parsed = parse(2, "--env A=b id --env C=d ls -d --env").unwrap();
        assert_eq!(parsed.operands, ["id", "ls", "-d", "--env"]);
        assert_eq!(parsed.all("env").collect::<Vec<_>>(), ["A=b", "C=d"]);
        assert_eq!(parse(2, "id -- -d").unwrap().operands, ["id", "-d"]);
        assert_eq!(parse(2, "id -").unwrap().operands, ["id", "-"]);
    }

    #[test]
    fn what_is_not_in_the_table_is_refused() {
        for line in ["--nosuch id", "-x id", "id --bundle", "-d=maybe id"] {
            assert!(matches!(parse(usize::MAX, line), Err(Error::Usage(_))), "{line}");
        }
        assert!(parse(1, "--env=x id").unwrap().number::<u64>("env").is_err());
    }
}
