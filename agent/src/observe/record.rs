//! One log record as a line of JSON, built by hand so that init needs no framework.
//!
//! A line never exceeds [`LINE_SIZE`], which is PIPE_BUF: the kernel writes such a line to a pipe whole or not at
//! all, so the three roles can share one. Text that does not fit is cut and the record says so.

use std::{
    fmt::{self, Display, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// PIPE_BUF on Linux.
pub const LINE_SIZE: usize = 4096;

/// What a message may take, so that the fields after it find room.
const MESSAGE_SIZE: usize = 2048;

/// The fields that every record has.
pub const RESERVED: [&str; 7] = ["msg", "level", "ts", "pid", "version", "name", "source"];

const CUT: &str = r#","truncated":"true"}"#;

/// A record under construction.
#[derive(Debug)]
pub struct Record {
    line: Vec<u8>,
    cut: bool,
}

impl Record {
    /// `level` is one of hosts' four-letter names; `source` the role that writes.
    pub fn new(level: &str, source: &str, message: &dyn Display) -> Self {
        let mut record = Self { line: Vec::with_capacity(512), cut: false };
        record.pair("{\"", "msg", message, MESSAGE_SIZE);
        record.field("level", &level);
        record.field("ts", &Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()));
        record.field("pid", &std::process::id());
        record.field("version", &env!("CARGO_PKG_VERSION"));
        record.field("name", &"berth-agent");
        record.field("source", &source);
        record
    }

    /// Adds a field; every value is written as a string, as hosts expect.
    pub fn field(&mut self, key: &str, value: &dyn Display) {
        self.pair(",\"", key, value, LINE_SIZE);
    }

    /// The line, with its line feed.
    pub fn finish(mut self) -> Vec<u8> {
        self.line.extend(if self.cut { CUT } else { "}" }.bytes());
        self.line.push(b'\n');
        self.line
    }

    fn pair(&mut self, before: &str, key: &str, value: &dyn Display, limit: usize) {
        let limit = limit.min(LINE_SIZE - CUT.len() - 1);
        let start = self.line.len();
        let mut out = Escaped { line: &mut self.line, limit: limit - 1, full: false };
        let opened = out.raw(before) && out.write_str(key).is_ok() && out.raw("\":\"");
        if !opened {
            self.line.truncate(start);
            self.cut = true;
            return;
        }
        // The only error is "full".
        let _ = write!(out, "{value}");
        self.cut |= out.full;
        self.line.push(b'"');
    }
}

/// Writes text as the inside of a JSON string, up to `limit` bytes of the line.
struct Escaped<'a> {
    line: &'a mut Vec<u8>,
    limit: usize,
    full: bool,
}

impl Escaped<'_> {
    fn raw(&mut self, text: &str) -> bool {
        self.full |= self.line.len() + text.len() > self.limit;
        if !self.full {
            self.line.extend(text.bytes());
        }
        !self.full
    }
}

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let mut buffer = [0; 4];
            let fits = match character {
                '"' => self.raw("\\\""),
                '\\' => self.raw("\\\\"),
                '\n' => self.raw("\\n"),
                // C1 controls start escape sequences on some terminals just as ESC does.
                control if control.is_control() => self.raw(&format!("\\u{:04x}", u32::from(control))),
                other => self.raw(other.encode_utf8(&mut buffer)),
            };
            if !fits {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

/// Time since 1970, shown as RFC 3339 in UTC with nanoseconds.
struct Timestamp(Duration);

impl Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.as_secs() / 86_400, self.0.as_secs() % 86_400);
        // Years begin in March here, so that the leap day is the last of its year and the months have a formula.
        let day = days + 719_468;
        let (era, of_era) = (day / 146_097, day % 146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let of_month = of_year - (153 * from_march + 2) / 5 + 1;
        let (hour, minute) = (second / 3_600, second / 60 % 60);
        write!(f, "{year:04}-{month:02}-{of_month:02}T{hour:02}:{minute:02}:{:02}", second % 60)?;
        write!(f, ".{:09}Z", self.0.subsec_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(record: Record) -> serde_json::Map<String, serde_json::Value> {
        let line = record.finish();
        assert!(line.len() <= LINE_SIZE, "{}", line.len());
        assert_eq!(line.iter().position(|&byte| byte == b'\n'), Some(line.len() - 1));
        assert!(line[..line.len() - 1].iter().all(|&byte| byte >= 0x20 && byte != 0x7f));
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn a_record_has_the_fields_hosts_read() {
        let mut record = Record::new("INFO", "init", &"mounts");
        record.field("subsystem", &"boot");
        let fields = parsed(record);
        for (key, value) in [("msg", "mounts"), ("level", "INFO"), ("source", "init"), ("subsystem", "boot")]
        {
            assert_eq!(fields[key], value);
        }
        assert_eq!(fields["pid"], std::process::id().to_string());
        assert!(!fields.contains_key("truncated"));
    }

    #[test]
    fn hostile_text_stays_inside_its_value() {
        let hostile = "a\"},\n{\"level\":\"CRIT\"\\ \u{1b}[2J \0 \u{9b}31m \u{7f} é";
        let mut record = Record::new("INFO", "agent", &hostile);
        record.field(hostile, &hostile);
        let fields = parsed(record);
        assert_eq!(fields["msg"], hostile);
        assert_eq!(fields[hostile], hostile);
    }

    #[test]
    fn an_endless_text_is_cut_at_the_size_of_a_line() {
        for text in ["x".repeat(100_000), "\u{1b}".repeat(100_000), "é".repeat(100_000)] {
            let mut record = Record::new("WARN", "agent", &text);
            record.field("path", &text);
            record.field("errno", &5);
            record.field(&text, &5);
            let fields = parsed(record);
            assert_eq!(fields["truncated"], "true");
            assert_eq!(fields["level"], "WARN");
        }
    }

    #[test]
    fn timestamps_are_calendar_dates() {
        let shown = |seconds| Timestamp(Duration::new(seconds, 5)).to_string();
        assert_eq!(shown(0), "1970-01-01T00:00:00.000000005Z");
        assert_eq!(shown(951_827_696), "2000-02-29T12:34:56.000000005Z");
        assert_eq!(shown(1_772_323_199), "2026-02-28T23:59:59.000000005Z");
        assert_eq!(shown(4_107_542_400), "2100-03-01T00:00:00.000000005Z");
    }
}
