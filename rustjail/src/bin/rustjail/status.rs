//! What a container is doing, in the words of runtime-spec.

use std::fmt;

/// The states of runtime-spec, and `paused`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The command that makes it is at work.
    Creating,
    /// Its init waits for the start.
    Created,
    /// Its program runs.
    Running,
    /// It is frozen.
    Paused,
    /// Its init is gone, or was never made.
    Stopped,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        })
    }
}
