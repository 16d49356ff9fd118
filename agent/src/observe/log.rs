//! The worker's logger: slog records to a [`Sink`].

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{Mutex, PoisonError},
};

use slog::{Drain, KV, Key, Level, Logger, Never, OwnedKVList, Serializer};

use super::{record::Record, sink::Sink};

/// A logger for one role; records below `level` cost nothing.
pub fn logger(sink: Sink, level: Level, source: &'static str) -> Logger {
    Logger::root(Lines::new(sink, level, source), slog::o!())
}

/// A slog drain that writes lines of JSON.
#[derive(Debug)]
pub struct Lines {
    // Blocking work on other threads logs too. The lock is held for one write that cannot block.
    sink: AssertUnwindSafe<Mutex<Sink>>,
    level: Level,
    source: &'static str,
}

impl Lines {
    /// Drops what is below `level`.
    pub fn new(sink: Sink, level: Level, source: &'static str) -> Self {
        Self { sink: AssertUnwindSafe(Mutex::new(sink)), level, source }
    }
}

impl Drain for Lines {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &slog::Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        if !record.level().is_at_least(self.level) {
            return Ok(());
        }
        let mut fields = Fields(Record::new(record.level().as_short_str(), self.source, record.msg()));
        // A value that cannot be shown is left out; the record is worth more than the field.
        let _ = values.serialize(record, &mut fields);
        let _ = record.kv().serialize(record, &mut fields);
        let line = fields.0.finish();
        self.sink.lock().unwrap_or_else(PoisonError::into_inner).write(&line);
        Ok(())
    }

    fn is_enabled(&self, level: Level) -> bool {
        level.is_at_least(self.level)
    }
}

struct Fields(Record);

impl Serializer for Fields {
    fn emit_arguments(&mut self, key: Key, value: &fmt::Arguments<'_>) -> slog::Result {
        self.0.field(key, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    #[test]
    fn records_carry_their_values_and_low_levels_are_left_out() {
        let (mut reader, writer) = io::pipe().unwrap();
        let root = logger(Sink::new(writer.into(), "agent"), Level::Info, "agent");
        let log = root.new(slog::o!("subsystem" => "rpc"));
        slog::debug!(log, "unseen");
        slog::warn!(log, "container {} ended", "a\nb"; "status" => 137, "path" => ?"x\"y");
        drop((root, log));

        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count(), 1);
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(record["msg"], "container a\nb ended");
        assert_eq!(record["level"], "WARN");
        assert_eq!(record["subsystem"], "rpc");
        assert_eq!(record["status"], "137");
        assert_eq!(record["path"], "\"x\\\"y\"");
    }
}
