//! Where errors go: one line each, to standard error or to the file that `--log` names.
//!
//! The JSON lines have the keys that podman's and containerd's shims look for (`level`, `msg`, `time`). The file
//! is opened for a line and closed again, so no container can find it open.

use std::{
    fmt::Display,
    fs::OpenOptions,
    io::{self, Write},
    path::PathBuf,
};

use serde_json::json;

use crate::{error::Error, time};

/// Takes lines.
#[derive(Debug, Default)]
pub struct Log {
    file: Option<PathBuf>,
    json: bool,
    debug: bool,
}

impl Log {
    /// What the flags `--log`, `--log-format` and `--debug` ask for.
    pub fn new(file: Option<&str>, format: Option<&str>, debug: bool) -> Result<Self, Error> {
        let json = match format {
            None | Some("" | "text") => false,
            Some("json") => true,
            Some(other) => return Err(Error::Usage(format!("--log-format {other:?} is not text or json"))),
        };
        let file = file.filter(|path| !path.is_empty() && *path != "/dev/stderr").map(PathBuf::from);
        Ok(Self { file, json, debug })
    }

    /// What failed. With a log file people are told on standard error as well.
    pub fn error(&self, message: impl Display) {
        let message = message.to_string();
        self.write("error", &message);
        if self.file.is_some() {
            let _ = writeln!(io::stderr(), "{message}");
        }
    }

    /// What went wrong without making the command fail.
    pub fn warning(&self, message: impl Display) {
        self.write("warning", &message.to_string());
    }

    /// What is done, when `--debug` asks for it.
    pub fn debug(&self, message: impl FnOnce() -> String) {
        if self.debug {
            self.write("debug", &message());
        }
    }

    /// Nobody is left to be told when this fails.
    fn write(&self, level: &str, message: &str) {
        let line = self.line(level, message);
        let _ = match &self.file {
            None => io::stderr().write_all(line.as_bytes()),
            Some(path) => OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .and_then(|mut file| file.write_all(line.as_bytes())),
        };
    }

    fn line(&self, level: &str, message: &str) -> String {
        let time = time::now(false);
        match self.json {
            true => format!("{}\n", json!({"level": level, "msg": message, "time": time})),
            // A JSON string is also how logfmt quotes.
            false => format!("time={time:?} level={level} msg={}\n", json!(message)),
        }
    }
}
