//! The part of TOML that configuration files are written in: tables, text in all four forms, whole numbers, yes and
//! no, and inline tables of those.
//!
//! Dates, lists, fractions and dotted keys are refused with the line they are in. The `toml` crate is 165 KB of the
//! guest binary, a sixth of what all that is to come may take; this is 5.

use std::{collections::BTreeMap, iter::Peekable, str::Chars};

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// `true` or `false`.
    Switch(bool),
    /// A table, inline or under its heading.
    Table(Table),
}

/// Values by key.
pub type Table = BTreeMap<String, Value>;

/// Why a text is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TomlError {
    /// From 1.
    pub line: usize,
    /// What is wrong there.
    pub problem: &'static str,
}

/// Reads a whole document. Nothing is understood that another reader would refuse, or read as something else: what a
/// document says may have been agreed on with somebody who uses that one.
pub fn parse(text: &str) -> Result<Table, TomlError> {
    refuse_controls(text)?;
    let mut reader = Reader { rest: text.chars().peekable(), line: 1 };
    let mut root = Table::new();
    let mut heading: Option<String> = None;
    loop {
        reader.skip_lines();
        match reader.peek() {
            None => return Ok(root),
            Some('[') => {
                reader.next();
                let name = reader.key()?;
                reader.expect(']', "a heading ends with ]; lists and tables in tables are not understood")?;
                if root.insert(name.clone(), Value::Table(Table::new())).is_some() {
                    return reader.problem("this table is here twice");
                }
                heading = Some(name);
            }
            Some(_) => {
                let (key, value) = reader.pair()?;
                let table = match heading.as_ref().and_then(|name| root.get_mut(name)) {
                    Some(Value::Table(table)) => table,
                    _ => &mut root,
                };
                if table.insert(key, value).is_some() {
                    return reader.problem("this key is here twice");
                }
            }
        }
        reader.end_of_line()?;
    }
}

/// A carriage return belongs to the end of a line.
fn refuse_controls(text: &str) -> Result<(), TomlError> {
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let rest = line.strip_suffix("\r\n").or(line.strip_suffix('\n')).unwrap_or(line);
        if rest.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
            return Err(TomlError { line: number + 1, problem: "a control character that no text may have" });
        }
    }
    Ok(())
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
}

type Result<T, E = TomlError> = std::result::Result<T, E>;

impl Reader<'_> {
    fn problem<T>(&self, problem: &'static str) -> Result<T> {
        Err(TomlError { line: self.line, problem })
    }

    fn next(&mut self) -> Option<char> {
        let character = self.rest.next();
        self.line += usize::from(character == Some('\n'));
        character
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next();
        }
        found
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(character) = self.peek().filter(|&character| wanted(character)) {
            text.push(character);
            self.next();
        }
        text
    }

    fn skip_blanks(&mut self) {
        self.take_while(|character| character == ' ' || character == '\t');
    }

    fn skip_comment(&mut self) {
        self.skip_blanks();
        if self.peek() == Some('#') {
            self.take_while(|character| character != '\n');
        }
    }

    fn skip_lines(&mut self) {
        self.skip_comment();
        while matches!(self.peek(), Some('\n' | '\r')) {
            self.next();
            self.skip_comment();
        }
    }

    fn end_of_line(&mut self) -> Result<()> {
        self.skip_comment();
        self.take('\r');
        if self.peek().is_none() || self.take('\n') {
            Ok(())
        } else {
            self.problem("more on this line than one value")
        }
    }

    fn expect(&mut self, wanted: char, otherwise: &'static str) -> Result<()> {
        self.skip_blanks();
        if self.take(wanted) { Ok(()) } else { self.problem(otherwise) }
    }

    fn key(&mut self) -> Result<String> {
        self.skip_blanks();
        match self.peek() {
            Some(quote @ ('"' | '\'')) => {
                self.next();
                self.line_text(quote)
            }
            _ => {
                let key = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
                if key.is_empty() { self.problem("a key belongs here") } else { Ok(key) }
            }
        }
    }

    fn pair(&mut self) -> Result<(String, Value)> {
        let key = self.key()?;
        self.expect('=', "a key is followed by = and its value")?;
        self.skip_blanks();
        Ok((key, self.value()?))
    }

    fn value(&mut self) -> Result<Value> {
        match self.peek() {
            Some(quote @ ('"' | '\'')) => {
                self.next();
                self.text(quote).map(Value::Text)
            }
            Some('{') => {
                self.next();
                self.inline_table().map(Value::Table)
            }
            _ => {
                let word = self.take_while(|c| c.is_ascii_alphanumeric() || "+-_.:".contains(c));
                match (word.as_str(), whole_number(&word)) {
                    ("true", _) => Ok(Value::Switch(true)),
                    ("false", _) => Ok(Value::Switch(false)),
                    (_, Some(number)) => Ok(Value::Number(number)),
                    _ => self.problem("the value is neither text in quotes, a whole number, true, nor false"),
                }
            }
        }
    }

    fn inline_table(&mut self) -> Result<Table> {
        let mut table = Table::new();
        self.skip_blanks();
        if self.take('}') {
            return Ok(table);
        }
        loop {
            let (key, value) = self.pair()?;
            // One level is all that a duration needs, and depth is what a stack overflow is made of.
            if matches!(value, Value::Table(_)) {
                return self.problem("a table within a table is not understood");
            }
            if table.insert(key, value).is_some() {
                return self.problem("this key is here twice");
            }
            self.skip_blanks();
            if self.take('}') {
                return Ok(table);
            }
            self.expect(',', "the values of a table are separated by commas and end with }")?;
        }
    }

    /// After the first quote.
    fn text(&mut self, quote: char) -> Result<String> {
        if !self.take(quote) {
            return self.line_text(quote);
        }
        if !self.take(quote) {
            return Ok(String::new());
        }
        self.take('\r');
        self.take('\n');
        let (mut text, mut quotes) = (String::new(), 0);
        loop {
            let next = self.next();
            quotes = if next == Some(quote) { quotes + 1 } else { 0 };
            match next {
                None => return self.problem("text in three quotes does not end"),
                Some('\\') if quote == '"' => self.escape(&mut text, true)?,
                Some(character) => text.push(character),
            }
            // Up to two more quotes may stand before the three that end it.
            if quotes == 5 || (quotes >= 3 && self.peek() != Some(quote)) {
                text.truncate(text.len() - 3);
                return Ok(text);
            }
        }
    }

    fn line_text(&mut self, quote: char) -> Result<String> {
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return self.problem("text in quotes does not end on its line"),
                Some(character) if character == quote => return Ok(text),
                Some('\\') if quote == '"' => self.escape(&mut text, false)?,
                Some(character) => text.push(character),
            }
        }
    }

    fn escape(&mut self, text: &mut String, lines: bool) -> Result<()> {
        let character = match self.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('e') => '\u{1b}',
            Some(itself @ ('"' | '\\')) => itself,
            Some('u') => self.code_point(4)?,
            Some('U') => self.code_point(8)?,
            Some('\n') if lines => {
                self.take_while(|character| matches!(character, ' ' | '\t' | '\r' | '\n'));
                return Ok(());
            }
            _ => return self.problem("an escape that does not exist"),
        };
        text.push(character);
        Ok(())
    }

    fn code_point(&mut self, digits: usize) -> Result<char> {
        let hex: String = (0..digits).map_while(|_| self.next()).collect();
        let are_digits = hex.len() == digits && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32) {
            Some(character) if are_digits => Ok(character),
            _ => self.problem("an escape that is no character"),
        }
    }
}

/// Underscores stand between digits, and no zero before others.
fn whole_number(word: &str) -> Option<i64> {
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let sound = digits.split('_').all(are_digits) && (digits == "0" || !digits.starts_with('0'));
    sound.then(|| word.replace('_', "").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    #[test]
    fn all_forms_of_values_are_read() {
        let document = "# first\na = 'lit\\eral' # after\r\nb = \"t\\tu\\u00e9\"\n\nc=1_000\nd = -7\ne = true\n\
            f = { secs = 3 , nanos = 0 }\ng = \"\"\n\"quoted key\" = {}\n[data]\n\"x.toml\" = '''\nline 1\n'two'\n'''\n\
            y = \"\"\"one \\\n   two \"three\"\"\"\"\n";
        let table = parse(document).unwrap();
        assert_eq!(table["a"], text("lit\\eral"));
        assert_eq!(table["b"], text("t\tué"));
        assert_eq!((&table["c"], &table["d"]), (&Value::Number(1000), &Value::Number(-7)));
        assert_eq!(table["e"], Value::Switch(true));
        assert_eq!(table["g"], text(""));
        assert_eq!(table["quoted key"], Value::Table(Table::new()));
        let Value::Table(duration) = &table["f"] else { panic!("{table:?}") };
        assert_eq!(duration.len(), 2);
        let Value::Table(data) = &table["data"] else { panic!("{table:?}") };
        assert_eq!(data["x.toml"], text("line 1\n'two'\n"));
        assert_eq!(data["y"], text("one two \"three\""));
        assert_eq!(parse("a = \"\"\"x\\\"\"\"y\"\"\"").unwrap()["a"], text("x\"\"\"y"));
        // A blank of some language's is no blank of TOML's.
        assert_eq!(parse("a = \"\"\"x\\\n \u{a0}y\"\"\"").unwrap()["a"], text("x\u{a0}y"));
        assert_eq!(parse("a = +1_000").unwrap()["a"], Value::Number(1000));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for (document, line) in [
            ("a = ", 1),
            ("a", 1),
            ("\n\na = 1 b = 2", 3),
            ("a = 1\na = 2", 2),
            ("a = [1]", 1),
            ("a = 1.5", 1),
            ("a.b = 1", 1),
            ("a = 1979-05-27", 1),
            ("[a]\n[a]", 2),
            ("[[a]]", 1),
            ("a = \"x", 1),
            ("a = '''x\n\n", 3),
            ("a = \"\\q\"", 1),
            ("a = \"\\ud800\"", 1),
            ("a = \"\\u+041\"", 1),
            ("a = { b = { c = 1 } }", 1),
            ("a = { b = 1", 1),
            ("= 1", 1),
            ("a = 99999999999999999999", 1),
            ("a = 007", 1),
            ("a = 1__0", 1),
            ("a = _1", 1),
            ("a = 'x\0y'", 1),
            ("a = 1\n# \r # 2", 2),
            ("a = \"\"\"x\"\"\"\"\"\"", 1),
        ] {
            assert_eq!(parse(document).map_err(|error| error.line), Err(line), "{document}");
        }
    }
}
