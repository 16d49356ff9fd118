//! A reader of the YAML that CDI descriptions are written in.
//!
//! That is what programs write and people type: mappings and sequences by indentation or in brackets, plain and
//! quoted values, comments. Anchors, tags, block texts and values over several lines are refused with their line,
//! never misread. Numbers are as in the YAML that CDI's own tools read: a leading zero means octal.

use serde_json::{Map, Number, Value};

/// Deeper than any description.
const MAX_DEPTH: usize = 32;

/// What separates; of all that Unicode calls white space nothing else does.
const BLANK: [char; 2] = [' ', '\t'];

/// What begins something else than letters.
const SPECIAL: [char; 15] = ['#', '&', '*', '!', '|', '>', '%', '@', '`', '?', ',', '[', ']', '{', '}'];

/// Why a text is not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct YamlError {
    line: usize,
    problem: &'static str,
}

type Result<T> = std::result::Result<T, YamlError>;

/// A line with something on it.
#[derive(Debug, Clone)]
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

/// The one document in `text`.
pub fn read(text: &str) -> Result<Value> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let strange = line.contains(is_other);
        let content = without_comment(line).trim_end_matches(BLANK);
        let text = content.trim_start_matches(' ');
        let line = Line { number: index + 1, indent: content.len() - text.len(), text };
        match text {
            _ if strange => return line.refuse("has a character that is not read here"),
            "" => {}
            "---" if lines.is_empty() && line.indent == 0 => {}
            _ if text.starts_with('\t') => return line.refuse("is indented by a tab"),
            _ if text.starts_with("---") || text.starts_with("...") => {
                return line.refuse("begins another document");
            }
            _ if text.starts_with('%') => return line.refuse("is a directive, which is not read here"),
            _ => lines.push(line),
        }
    }
    let mut reader = Reader { lines, next: 0 };
    let Some(first) = reader.peek() else { return Ok(Value::Null) };
    let value = reader.node(first.indent, 0)?;
    match reader.peek() {
        None => Ok(value),
        Some(line) => line.refuse("does not belong to what is before it"),
    }
}

/// Control characters, and what some readers take for the end of a line or for nothing.
fn is_other(letter: char) -> bool {
    letter.is_control() && letter != '\t' || matches!(letter, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// A `#` begins one at the start of a line or after a blank, but not in quotes.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before, mut escaped) = (None, ' ', false);
    for (index, letter) in line.char_indices() {
        match quote {
            _ if escaped => escaped = false,
            Some('"') if letter == '\\' => escaped = true,
            Some(open) if open == letter => quote = None,
            Some(_) => {}
            // Only where a value begins; within a plain one a quote is a letter.
            None if matches!(letter, '"' | '\'') && " [{,".contains(before) => quote = Some(letter),
            None if letter == '#' && BLANK.contains(&before) => return line.get(..index).unwrap_or_default(),
            None => {}
        }
        before = letter;
    }
    line
}

impl<'a> Line<'a> {
    fn refuse<T>(&self, problem: &'static str) -> Result<T> {
        Err(YamlError { line: self.number, problem })
    }

    /// What follows the `-` of a sequence, and where.
    fn item(&self) -> Option<Line<'a>> {
        let rest = self.text.strip_prefix('-')?;
        let text = rest.trim_start_matches(' ');
        let whole = rest.is_empty() || rest.starts_with(' ');
        whole.then(|| Line { number: self.number, indent: self.indent + self.text.len() - text.len(), text })
    }

    /// A key, and what follows its colon.
    fn entry(&self) -> Result<Option<(String, &'a str)>> {
        if self.text.starts_with(['"', '\'']) {
            let (key, rest) = self.quoted(self.text)?;
            return Ok(rest
                .trim_start_matches(BLANK)
                .strip_prefix(':')
                .map(|rest| (key, rest.trim_start_matches(BLANK))));
        }
        let colon = self.text.find(": ").or_else(|| self.text.ends_with(':').then(|| self.text.len() - 1));
        let Some((key, rest)) = colon.map(|colon| self.text.split_at(colon)) else { return Ok(None) };
        Ok(Some((self.plain_key(key)?, rest.get(1..).unwrap_or_default().trim_start_matches(BLANK))))
    }

    /// A quoted text at the start of `text`, and what comes after it.
    fn quoted<'t>(&self, text: &'t str) -> Result<(String, &'t str)> {
        let mut letters = text.char_indices().peekable();
        let quote = letters.next().map(|(_, quote)| quote);
        let mut value = String::new();
        while let Some((index, letter)) = letters.next() {
            match letter {
                '\'' if quote == Some('\'') && letters.peek().is_some_and(|(_, next)| *next == '\'') => {
                    letters.next();
                    value.push('\'');
                }
                _ if Some(letter) == quote => {
                    return Ok((value, text.get(index + letter.len_utf8()..).unwrap_or_default()));
                }
                '\\' if quote == Some('"') => match letters.next().map(|(_, escaped)| escaped) {
                    Some('n') => value.push('\n'),
                    Some('t') => value.push('\t'),
                    Some(plain @ ('"' | '\\' | '/' | ' ')) => value.push(plain),
                    _ => return self.refuse("has an escape that is not read here"),
                },
                _ => value.push(letter),
            }
        }
        self.refuse("has a quote that does not end on the line")
    }

    /// A key without quotes.
    fn plain_key(&self, text: &str) -> Result<String> {
        let key = text.trim_end_matches(' ');
        self.letters(key)?;
        if key == "<<" {
            return self.refuse("merges mappings, which is not done here");
        }
        Ok(key.to_owned())
    }

    /// Refuses what means more than its letters.
    fn letters(&self, text: &str) -> Result<()> {
        if text.starts_with(SPECIAL) {
            return self.refuse("has an anchor, a tag, a block text or the like, which is not read here");
        }
        if text.contains(" #") || text.contains('\t') {
            return self.refuse("has a tab, or a comment after a quote");
        }
        Ok(())
    }

    /// A value without quotes and brackets.
    fn plain(&self, text: &str) -> Result<Value> {
        self.letters(text)?;
        if text.contains(": ") || text.ends_with(':') {
            return self.refuse("has a mapping where only a value can be");
        }
        Ok(match text {
            "" | "~" | "null" | "Null" | "NULL" => Value::Null,
            "true" | "True" | "TRUE" => Value::Bool(true),
            "false" | "False" | "FALSE" => Value::Bool(false),
            _ => match number(text) {
                Some(number) => Value::Number(number),
                None if is_numeric(text) => return self.refuse("has a number that is not read here"),
                None => Value::String(text.to_owned()),
            },
        })
    }
}

/// Whether some readers would take `text`, which is no number to us, for one.
fn is_numeric(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let first = digits.strip_prefix('.').unwrap_or(digits);
    let named = ["inf", "nan"].iter().any(|name| first.eq_ignore_ascii_case(name)) && first != digits;
    let based = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit() || digit == b'_');
    named
        || ["0x", "0o", "0b"].iter().filter_map(|radix| digits.strip_prefix(radix)).any(based)
        || first.starts_with(|first: char| first.is_ascii_digit()) && digits.parse::<f64>().is_ok()
}

fn number(text: &str) -> Option<Number> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let (radix, rest) = match digits.get(..2) {
        Some("0x") => (16, digits.get(2..)?),
        Some("0o") => (8, digits.get(2..)?),
        Some(two) if two.starts_with('0') && !two.contains('.') => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if !rest.starts_with(['+', '-'])
        && let Ok(whole) = i64::from_str_radix(rest, radix)
    {
        return Some(Number::from(if negative { -whole } else { whole }));
    }
    if radix != 10 || !text.contains(['.', 'e', 'E']) {
        return None;
    }
    text.parse().ok().and_then(Number::from_f64)
}

struct Reader<'a> {
    lines: Vec<Line<'a>>,
    next: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<Line<'a>> {
        self.lines.get(self.next).cloned()
    }

    /// What is at `indent`, from the next line on.
    fn node(&mut self, indent: usize, depth: usize) -> Result<Value> {
        let Some(line) = self.peek() else { return Ok(Value::Null) };
        if depth > MAX_DEPTH {
            return line.refuse("is nested deeper than any description");
        }
        if line.item().is_some() {
            return self.sequence(indent, depth);
        }
        if !line.text.starts_with(['[', '{']) && line.entry()?.is_some() {
            return self.mapping(indent, depth);
        }
        self.next += 1;
        self.value(&line, line.text, depth)
    }

    fn sequence(&mut self, indent: usize, depth: usize) -> Result<Value> {
        let mut items = Vec::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent) {
            let Some(item) = line.item() else { break };
            if item.text.is_empty() {
                self.next += 1;
                items.push(self.below(indent, depth)?);
                continue;
            }
            // What follows the dash is a line of its own, further to the right.
            let inner = item.indent;
            if let Some(place) = self.lines.get_mut(self.next) {
                *place = item;
            }
            items.push(self.node(inner, depth + 1)?);
        }
        self.ends(indent)?;
        Ok(Value::Array(items))
    }

    fn mapping(&mut self, indent: usize, depth: usize) -> Result<Value> {
        let mut map = Map::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent && line.item().is_none()) {
            let Some((key, rest)) = line.entry()? else { return line.refuse("is no entry of a mapping") };
            self.next += 1;
            let value = match rest.is_empty() {
                false => self.value(&line, rest, depth)?,
                // A sequence may be as far to the left as its key.
                true => match self.peek() {
                    Some(next) if next.indent == indent && next.item().is_some() => {
                        self.sequence(indent, depth + 1)?
                    }
                    _ => self.below(indent, depth)?,
                },
            };
            if map.insert(key, value).is_some() {
                return line.refuse("has a key for the second time");
            }
        }
        self.ends(indent)?;
        Ok(Value::Object(map))
    }

    /// What is further to the right than `indent`, if anything is.
    fn below(&mut self, indent: usize, depth: usize) -> Result<Value> {
        match self.peek() {
            Some(line) if line.indent > indent => self.node(line.indent, depth + 1),
            _ => Ok(Value::Null),
        }
    }

    /// Nothing further to the right may follow.
    fn ends(&self, indent: usize) -> Result<()> {
        match self.peek() {
            Some(line) if line.indent > indent => line.refuse("is indented as nothing before it"),
            _ => Ok(()),
        }
    }

    /// A value that begins with `text`, on `line`, which has been taken.
    fn value(&mut self, line: &Line<'a>, text: &'a str, depth: usize) -> Result<Value> {
        if text.starts_with(['[', '{']) {
            let mut all = text.to_owned();
            while let Some(false) = closed(&all) {
                let Some(next) = self.peek() else { return line.refuse("has a bracket that is not closed") };
                self.next += 1;
                if !all.ends_with([',', ':', '[', '{']) && !next.text.starts_with([',', ']', '}']) {
                    return next.refuse("goes on with a value, which is not read here");
                }
                all.push(' ');
                all.push_str(next.text);
            }
            if closed(&all).is_none() {
                return line.refuse("has a quote that does not end on the line");
            }
            let (value, rest) = flow(line, &all, depth)?;
            return match rest.trim_matches(BLANK).is_empty() {
                true => Ok(value),
                false => line.refuse("has more after a closing bracket"),
            };
        }
        let value = match text.starts_with(['"', '\'']) {
            true => match line.quoted(text)? {
                (text, "") => Value::String(text),
                _ => return line.refuse("has more after a closing quote"),
            },
            false => line.plain(text)?,
        };
        match self.peek() {
            Some(next) if next.indent > line.indent => {
                next.refuse("goes on with a value, which is not read here")
            }
            _ => Ok(value),
        }
    }
}

/// Whether all brackets that are opened are closed again; those in quotes do not count. `None` if a quote is open.
fn closed(text: &str) -> Option<bool> {
    let (mut open, mut quote, mut escaped) = (0_i32, None, false);
    for letter in text.chars() {
        match (quote, letter) {
            _ if escaped => escaped = false,
            (Some('"'), '\\') => escaped = true,
            (Some(begun), _) if begun == letter => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[' | '{') => open += 1,
            (None, ']' | '}') => open -= 1,
            _ => {}
        }
    }
    quote.is_none().then_some(open <= 0)
}

/// A key without quotes within brackets, up to its colon. One that a blank does not follow is a letter like others.
fn plain_key<'t>(line: &Line<'_>, text: &'t str) -> Result<(String, &'t str)> {
    let end = text.find([':', ',', '[', ']', '{', '}']).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    if !rest.starts_with(": ") {
        return line.refuse("has a mapping in brackets without a colon and a blank");
    }
    Ok((line.plain_key(key)?, rest))
}

/// A value within brackets, or with them around it, and what comes after it.
fn flow<'t>(line: &Line<'_>, text: &'t str, depth: usize) -> Result<(Value, &'t str)> {
    let text = text.trim_start_matches(BLANK);
    if depth > MAX_DEPTH {
        return line.refuse("is nested deeper than any description");
    }
    if let Some(mut rest) = text.strip_prefix('[') {
        let mut items = Vec::new();
        loop {
            rest = rest.trim_start_matches(BLANK);
            if let Some(rest) = rest.strip_prefix(']') {
                return Ok((Value::Array(items), rest));
            }
            let (item, after) = flow(line, rest, depth + 1)?;
            items.push(item);
            rest = separated(line, after, ']')?;
        }
    }
    if let Some(mut rest) = text.strip_prefix('{') {
        let mut map = Map::new();
        loop {
            rest = rest.trim_start_matches(BLANK);
            if let Some(rest) = rest.strip_prefix('}') {
                return Ok((Value::Object(map), rest));
            }
            let (key, after) = match rest.starts_with(['"', '\'']) {
                true => line.quoted(rest)?,
                false => plain_key(line, rest)?,
            };
            let Some(after) = after.trim_start_matches(BLANK).strip_prefix(':') else {
                return line.refuse("has a mapping in brackets without a colon and a blank");
            };
            let (value, after) = flow(line, after, depth + 1)?;
            if map.insert(key, value).is_some() {
                return line.refuse("has a key for the second time");
            }
            rest = separated(line, after, '}')?;
        }
    }
    if text.starts_with(['"', '\'']) {
        let (text, rest) = line.quoted(text)?;
        return Ok((Value::String(text), rest));
    }
    let end = text.find([',', ']', '}']).unwrap_or(text.len());
    let (plain, rest) = text.split_at(end);
    Ok((line.plain(plain.trim_matches(BLANK))?, rest))
}

/// After an item comes a comma, or the end.
fn separated<'t>(line: &Line<'_>, rest: &'t str, end: char) -> Result<&'t str> {
    let rest = rest.trim_start_matches(BLANK);
    match rest.strip_prefix(',') {
        Some(rest) => Ok(rest),
        None if rest.starts_with(end) => Ok(rest),
        None => line.refuse("has brackets without a comma between two values"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_other_readers_read_otherwise_is_refused() {
        for text in [
            "{a b, c: d}",
            "{a:b}",
            "a: [b\n c]",
            "a: [\"b\n # c\n\"]",
            "a: .5",
            "a: -.INF",
            "a: 0b1",
            "a: 0xc7777777c7777777",
            "a: 99999999999999999999",
            "a: it \"s # b",
            "a \": # b",
            "a:\tb",
            "!b a: c",
            "<<: {a: b}",
            "--- a",
            " ---\na",
            "a: b # \rc: d",
            "a: b\u{2028}c: d",
        ] {
            assert!(read(text).is_err(), "{text:?}: {:?}", read(text));
        }
    }

    #[test]
    fn what_programs_write_is_read() {
        let text = "---\ncdiVersion: 0.5.0 # as nvidia-ctk does\nkind: \"nvidia.com/gpu\"\ncontainerEdits:\n  env:\n  - A=b: c#d\n  - 'it''s'\n  \
                    - \"tab\\t\"\n  deviceNodes:\n    - path: /dev/nvidia0\n      fileMode: 0644\n      major: 195\n      empty:\n    -\n      path: x\n  \
                    hooks: []\n  more: {a: [1, -2, 0x1f, 1.5, true, ~], \"b\": 'x, y'}\ndevices:\n- name: \"0\"\n  \
                    containerEdits:\n    mounts:\n    - hostPath: /a\n      options: [ro,\n        nosuid]\n- name: all\n- - 1\n  - 2\n";
        assert_eq!(
            read(&text.replace("A=b: c#d", "A=b:c#d")).unwrap(),
            json!({
                "cdiVersion": "0.5.0",
                "kind": "nvidia.com/gpu",
                "containerEdits": {
                    "env": ["A=b:c#d", "it's", "tab\t"],
                    "deviceNodes": [
                        { "path": "/dev/nvidia0", "fileMode": 0o644, "major": 195, "empty": null },
                        { "path": "x" },
                    ],
                    "hooks": [],
                    "more": { "a": [1, -2, 31, 1.5, true, null], "b": "x, y" },
                },
                "devices": [
                    { "name": "0", "containerEdits": { "mounts": [{ "hostPath": "/a", "options": ["ro", "nosuid"] }] } },
                    { "name": "all" },
                    [1, 2],
                ],
            })
        );
        assert_eq!(read("").unwrap(), Value::Null);
        assert_eq!(read("{\"a\":\n {\"b\": [\n1]\n}}").unwrap(), json!({ "a": { "b": [1] } }));
        assert_eq!(read("a: 'x # y' # z").unwrap(), json!({ "a": "x # y" }));
    }

    #[test]
    fn what_could_be_misread_is_refused_with_its_line() {
        for (text, line) in [
            ("a: &x 1", 1),
            ("a: 1\nb: *x", 2),
            ("a: |\n  text", 1),
            ("a: !!str 1", 1),
            ("a: one\n  two", 2),
            ("a: 1\na: 2", 2),
            ("a: 1\n---\nb: 2", 2),
            ("a:\n\tb: 1", 2),
            ("a: \"open", 1),
            ("a: [1", 1),
            ("a: [1] 2", 1),
            ("a: {b 1}", 1),
            ("a: [1 [2]]", 1),
            ("a: b: c", 1),
            ("a:\n    b: 1\n  c: 2", 3),
            ("- 1\nb: 2", 2),
            ("%YAML 1.2\na: 1", 1),
        ] {
            assert_eq!(read(text).map_err(|error| error.line), Err(line), "{text:?}");
        }
        assert!(read(&"- ".repeat(100)).is_err() && read(&"[".repeat(100_000)).is_err());
        assert!(read(&format!("a: {}{}", "[".repeat(100), "]".repeat(100))).is_err());
    }
}
