//! What the agent tells about itself: log records, one JSON object on one line, in the shape that hosts of Kata's
//! agent parse (`msg`, `level`, `ts`, `pid`, `version`, `name`, `source`, `subsystem`).
//!
//! Nobody can stop the agent by not reading its log: a record that cannot be written at once is dropped and counted,
//! and the count is told with the next record that can. Nothing a workload names can break a record in two or
//! reach the terminal that shows it.

pub mod log;
pub mod metrics;
pub mod procfs;
pub mod readers;
pub mod record;
pub mod sink;
#[cfg(feature = "tracing")]
pub mod tracing;
