//! Every number the server holds itself to, and why it is that number.
//!
//! What the wire fixes is a constant; what a machine or a test may want different is a field of [`Limits`].
//! Each bound is on bytes or objects the peer can make us hold, so their sum bounds the server's memory.

use std::{fs, time::Duration};

/// The largest frame body in either direction: the constant of every published ttrpc implementation.
pub const FRAME_MAX: usize = 4 << 20;

/// The connection's own read buffer. A 64-frame batch of pings is 6 KiB; 64 connections cost 1 MiB. Larger
/// frames get a buffer of their own, charged to the budget before a byte of it is read.
pub const INPUT_BUFFER: usize = 16 << 10;

/// Frames up to this size may draw on [`SMALL_RESERVE`]: a signal or a ping gets through when bulk data has
/// used the budget up. The longest id-only request (two ids of 1,024 bytes) is 2.1 KiB.
pub const SMALL_FRAME: usize = 4 << 10;

/// What small frames may use beyond the byte budgets: 10,000 parked reads of 100 bytes are 1 MiB.
pub const SMALL_RESERVE: usize = 2 << 20;

/// Metadata carries trace context: two or three pairs in practice. Empty pairs cost two bytes on the wire,
/// so without a bound 4 MiB of them became 185 MB of heap in the crate's server.
pub const METADATA_PAIRS: usize = 64;

/// Keys and values together.
pub const METADATA_BYTES: usize = 16 << 10;

/// Reply bodies up to this size are copied next to their header; beyond it a copy costs more than one more
/// element in a vectored write.
pub const COALESCE: usize = 4 << 10;

/// Slices handed to one vectored write; the kernel takes 1,024, but sixteen 1 MiB replies fill any socket.
pub const SLICES: usize = 16;

/// A frame's own deadline grows by one second for each of these bytes received, so a peer that trickles
/// cannot hold a reservation for ever and one at 64 KiB/s is never cut off.
pub const PROGRESS_BYTES: usize = 64 << 10;

/// First and longest pause after `accept` failed for want of descriptors or memory.
pub const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The longest error text sent. Hosts log it whole; ids in it come from the wire.
pub const ERROR_TEXT: usize = 1 << 10;

/// The most one ReadStdout or ReadStderr returns; asking for more is legal, reads may be short.
pub const READ_MAX: u32 = 1 << 20;

/// A request may always decode to this much: a full container spec with seccomp is about 0.4 MiB decoded
/// from 60 KiB, far above any sensible ratio to its frame.
pub const DECODE_FLOOR: usize = 1 << 20;

/// What a list of routes may always decode to: 4,096 of them are 200 KiB on the wire and 2.3 MiB decoded, being
/// eight short fields each.
pub const ROUTES_FLOOR: usize = 4 << 20;

/// Beyond the floor, decoded bytes per byte of the frame. With the frame itself that is 4 in all.
pub const DECODE_RATIO: usize = 3;

/// Container ids become names of directories and files (NAME_MAX is 255), with room for a suffix.
pub const CONTAINER_ID: usize = 240;

/// Exec ids are only keys.
pub const EXEC_ID: usize = 1024;

/// How long a call without a deadline may take: the longest any known host waits (Kata with a remote hypervisor).
pub const METHOD_CAP: Duration = Duration::from_secs(300);

/// The bounds that a machine's size or a test may change.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections; a host uses one or two. The newest is closed at once.
    pub connections: usize,
    /// A started frame must make progress within this time; between frames a peer may be idle for ever.
    pub frame_progress: Duration,
    /// A peer that takes nothing of its replies for this long is gone.
    pub write_stall: Duration,
    /// Request bytes one connection may have in handlers and in partly read frames: two whole frames.
    pub connection_bytes: usize,
    /// The same over all connections.
    pub total_bytes: usize,
    /// Unanswered calls over all connections: 1,000 containers x (wait + stdout + stderr) five times over.
    pub pending_calls: usize,
    /// Reply bytes queued on one connection before it starts no more work: one frame.
    pub reply_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            frame_progress: Duration::from_secs(30),
            write_stall: Duration::from_secs(60),
            connection_bytes: 2 * FRAME_MAX,
            total_bytes: 4 * FRAME_MAX,
            pending_calls: 16_384,
            reply_bytes: FRAME_MAX,
        }
    }
}

impl Limits {
    /// The defaults, with the total cut to a sixteenth of the machine's memory where that is less: a guest of
    /// 128 MiB must not lose 16 of them to requests. One frame always fits.
    pub fn for_machine() -> Self {
        let mut limits = Self::default();
        if let Some(memory) = memory_bytes() {
            limits.total_bytes = (memory / 16).clamp(FRAME_MAX, limits.total_bytes);
            limits.connection_bytes = limits.connection_bytes.min(limits.total_bytes);
        }
        limits
    }
}

fn memory_bytes() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix(" kB")?;
    kib.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_s_limits_leave_room_for_one_frame() {
        let limits = Limits::for_machine();
        assert!(memory_bytes().is_some());
        assert!(limits.total_bytes >= FRAME_MAX && limits.total_bytes <= 4 * FRAME_MAX);
        assert!(limits.connection_bytes <= limits.total_bytes);
    }
}
