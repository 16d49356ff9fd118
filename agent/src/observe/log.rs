//! The worker's logger: slog records to one or more [`Sink`]s.
//!
//! Every record carries the sandbox's id once that is known, and no key twice: JSON leaves open which of two values
//! counts. [`Log`] is the handle by which the level and the outputs change while loggers are in use.

use std::{
    fmt::{self, Display},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use slog::{Drain, KV, Key, Level, Logger, Never, OwnedKVList, Serializer};

use super::{
    record::{RESERVED, Record},
    sink::Sink,
};

/// What all loggers of this process share.
#[derive(Debug, Clone)]
pub struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    // Blocking work on other threads logs too. The lock is held for writes that cannot block.
    sinks: Mutex<Vec<Sink>>,
    level: AtomicUsize,
    sandbox: Mutex<String>,
    lost: AtomicU64,
    source: &'static str,
}

impl Log {
    /// Writes what is at least `level` to `sink`, as the role `source`.
    pub fn new(sink: Sink, level: Level, source: &'static str) -> Self {
        Self(Arc::new(Shared {
            sinks: Mutex::new(vec![sink]),
            level: AtomicUsize::new(level.as_usize()),
            sandbox: Mutex::default(),
            lost: AtomicU64::new(0),
            source,
        }))
    }

    /// A logger whose records go where this says; those below the level cost nothing.
    pub fn logger(&self) -> Logger {
        Logger::root(Lines(self.clone()), slog::o!())
    }

    /// Writes to `sink` as well.
    pub fn add(&self, sink: Sink) {
        self.0.sinks.lock().unwrap_or_else(PoisonError::into_inner).push(sink);
    }

    /// The least severe level that is logged.
    pub fn level(&self) -> Level {
        Level::from_usize(self.0.level.load(Ordering::Relaxed)).unwrap_or(Level::Info)
    }

    /// Changes the level, also of loggers that exist.
    pub fn set_level(&self, level: Level) {
        self.0.level.store(level.as_usize(), Ordering::Relaxed);
    }

    /// Names the sandbox in every record from now on; an empty name in none.
    pub fn set_sandbox(&self, id: &str) {
        id.clone_into(&mut self.0.sandbox.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// How many times a record could not be written somewhere.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }
}

/// A slog drain that writes lines of JSON.
#[derive(Debug)]
struct Lines(Log);

impl Drain for Lines {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &slog::Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        if !self.is_enabled(record.level()) {
            return Ok(());
        }
        let shared = &*self.0.0;
        let out = Record::new(record.level().as_short_str(), shared.source, record.msg());
        let mut fields = Fields { out, seen: Vec::new() };
        // A value that cannot be shown is left out; the record is worth more than the field. What the record
        // says itself comes before what its logger says.
        let _ = record.kv().serialize(record, &mut fields);
        let _ = values.serialize(record, &mut fields);
        let sandbox = shared.sandbox.lock().unwrap_or_else(PoisonError::into_inner);
        if !sandbox.is_empty() {
            fields.add("sandbox", &*sandbox);
        }
        drop(sandbox);
        let line = fields.out.finish();
        let mut sinks = shared.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = sinks.iter_mut().filter_map(|sink| (!sink.write(&line)).then_some(1)).sum();
        shared.lost.fetch_add(lost, Ordering::Relaxed);
        Ok(())
    }

    fn is_enabled(&self, level: Level) -> bool {
        level.is_at_least(self.0.level())
    }
}

struct Fields {
    out: Record,
    seen: Vec<String>,
}

impl Fields {
    fn add(&mut self, key: &str, value: &dyn Display) {
        if !RESERVED.contains(&key) && !self.seen.iter().any(|seen| seen == key) {
            self.seen.push(key.to_owned());
            self.out.field(key, value);
        }
    }
}

impl Serializer for Fields {
    fn emit_arguments(&mut self, key: Key, value: &fmt::Arguments<'_>) -> slog::Result {
        self.add(key, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    /// What is logged by `work`, as parsed records.
    fn told(level: Level, work: impl FnOnce(&Log, Logger)) -> Vec<serde_json::Value> {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = Log::new(Sink::new(writer.into(), "agent"), level, "agent");
        let root = log.logger();
        work(&log, root);
        drop(log);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn records_carry_their_values_and_low_levels_are_left_out() {
        let records = told(Level::Info, |_, root| {
            let log = root.new(slog::o!("subsystem" => "rpc"));
            slog::debug!(log, "unseen");
            slog::warn!(log, "container {} ended", "a\nb"; "status" => 137, "path" => ?"x\"y");
        });
        assert_eq!(records.len(), 1);
        let record = &records[0];
        assert_eq!(record["msg"], "container a\nb ended");
        assert_eq!(record["level"], "WARN");
        assert_eq!(record["subsystem"], "rpc");
        assert_eq!(record["status"], "137");
        assert_eq!(record["path"], "\"x\\\"y\"");
    }

    #[test]
    fn the_level_and_the_sandbox_change_while_a_logger_is_in_use() {
        let records = told(Level::Info, |log, root| {
            slog::debug!(root, "unseen");
            log.set_level(Level::Debug);
            log.set_sandbox("box\n1");
            slog::debug!(root, "seen");
            log.set_sandbox("");
            slog::info!(root, "no more");
        });
        assert_eq!(records.len(), 2, "{records:?}");
        assert_eq!(records[0]["sandbox"], "box\n1");
        assert_eq!(records[1].get("sandbox"), None);
    }

    #[test]
    fn no_key_is_there_twice() {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = Log::new(Sink::new(writer.into(), "agent"), Level::Info, "agent");
        log.set_sandbox("outer");
        let root = log.logger().new(slog::o!("container" => "outer"));
        slog::info!(root, "m"; "container" => "inner", "pid" => 1, "level" => "CRIT", "sandbox" => "inner");
        drop((root, log));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        for key in ["container", "pid", "level", "sandbox"] {
            assert_eq!(text.matches(&format!("\"{key}\":")).count(), 1, "{text}");
        }
        assert!(text.contains("\"container\":\"inner\"") && text.contains("\"sandbox\":\"inner\""));
    }
}
