//! What init tells: the boot as a short story, one line for each stage, and later whatever goes wrong.

use std::{fmt::Display, io};

use nix::time::{ClockId, clock_gettime};
use slog::Level;

use crate::observe::{record::Record, sink::Sink};

/// Init's voice, and its memory of the boot.
#[derive(Debug)]
pub struct Story {
    sinks: Vec<Sink>,
    level: Level,
    stages: Vec<(String, u64)>,
}

impl Story {
    /// Tells it on standard output, which needs `/proc`.
    pub fn on_stdout() -> io::Result<Self> {
        Ok(Self { sinks: vec![Sink::stdout("init")?], level: Level::Info, stages: Vec::new() })
    }

    /// Tells it there too, what was told of the boot before included.
    pub fn add(&mut self, mut sink: Sink) {
        for (name, at) in &self.stages {
            sink.write(&told(Level::Info, "boot", name, &[("boottime_ns", at)]));
        }
        self.sinks.push(sink);
    }

    /// Leaves out what is less severe.
    pub fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    /// A stage of the boot is over.
    pub fn stage(&mut self, name: &str) {
        let now = boottime();
        self.stages.push((name.to_owned(), now));
        self.tell(Level::Info, "boot", &name, &[("boottime_ns", &now)]);
    }

    /// The stages so far.
    pub fn stages(&self) -> &[(String, u64)] {
        &self.stages
    }

    /// Something happened.
    pub fn event(&mut self, message: &dyn Display, fields: &[(&str, &dyn Display)]) {
        self.tell(Level::Info, "roles", message, fields);
    }

    /// Something went wrong, and init goes on.
    pub fn problem(&mut self, message: &dyn Display) {
        self.tell(Level::Warning, "init", message, &[]);
    }

    fn tell(
        &mut self,
        level: Level,
        subsystem: &str,
        message: &dyn Display,
        fields: &[(&str, &dyn Display)],
    ) {
        if level.is_at_least(self.level) {
            let line = told(level, subsystem, message, fields);
            self.sinks.iter_mut().for_each(|sink| _ = sink.write(&line));
        }
    }
}

fn told(level: Level, subsystem: &str, message: &dyn Display, fields: &[(&str, &dyn Display)]) -> Vec<u8> {
    let mut record = Record::new(level.as_short_str(), "init", message);
    record.field("subsystem", &subsystem);
    fields.iter().for_each(|(key, value)| record.field(key, value));
    record.finish()
}

fn boottime() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}
