//! The messages between init and worker.
//!
//! Neither side may add a meaning to a frame the other does not know: an unknown kind, or a field that must be
//! zero and is not, makes the whole frame void. Both roles run the same binary, so there are no versions.

use super::frame::{FRAME_SIZE, Parts};

/// What a listening socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListenerKind {
    /// ttrpc calls.
    Rpc,
    /// Raw standard streams.
    Stdio,
    /// Log readers.
    Log,
    /// Debug console.
    Console,
}

impl ListenerKind {
    /// What somebody misses if it cannot be opened, with its verb.
    pub fn served(self) -> &'static str {
        match self {
            Self::Rpc => "calls are",
            Self::Stdio => "raw standard streams are",
            Self::Log => "the log is",
            Self::Console => "the debug console is",
        }
    }
}

/// From the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToInit {
    /// The reactor turns.
    Ping,
    /// Keep the descriptor that comes with this under `key`, in place of what was there.
    Store {
        /// Chosen by the worker.
        key: u64,
    },
    /// Close the descriptors under `first` + N, for each bit N of `which`.
    Forget {
        /// As stored.
        first: u64,
        /// Not 0.
        which: u32,
    },
    /// A launch is about to be asked for: keep the exits of processes you do not know.
    Expect,
    /// One expected launch is decided: this is the process, if there is one.
    Settle {
        /// Whose exit is to be kept and told.
        pid: Option<i32>,
    },
    /// The oldest told exit of `pid` is recorded.
    Acknowledge {
        /// The process.
        pid: i32,
    },
    /// End everything and power off.
    Shutdown,
}

/// From init.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToWorker {
    /// The first message.
    Hello {
        /// How many workers there were before.
        generation: u32,
        /// Whether init is process 1 of its PID namespace.
        pid1: bool,
    },
    /// A stage of the boot.
    Stage {
        /// What was done.
        name: String,
        /// CLOCK_BOOTTIME at its end, in nanoseconds.
        at: u64,
    },
    /// A listening socket comes with this.
    Listener {
        /// Its use.
        kind: ListenerKind,
    },
    /// A stored descriptor comes with this.
    Stored {
        /// As stored.
        key: u64,
    },
    /// A link to a new launcher comes with this; the one before is dead.
    Launcher {
        /// The process.
        pid: i32,
    },
    /// The reading end of the pipe that log readers are served from comes with this.
    Records,
    /// The hand-over is complete.
    Ready,
    /// A process that was settled has ended.
    Exit {
        /// The process.
        pid: i32,
        /// The exit code, or 128 + the signal's number.
        status: i32,
    },
}

impl ToInit {
    /// As bytes.
    pub fn encode(&self) -> [u8; FRAME_SIZE] {
        let mut parts = Parts::default();
        (parts.kind, parts.small, parts.large) = match *self {
            Self::Ping => (1, 0, 0),
            Self::Store { key } => (2, 0, key),
            Self::Forget { first, which } => (3, which, first),
            Self::Expect => (4, 0, 0),
            Self::Settle { pid } => (5, pid.unwrap_or(0).cast_unsigned(), 0),
            Self::Acknowledge { pid } => (6, pid.cast_unsigned(), 0),
            Self::Shutdown => (7, 0, 0),
        };
        parts.encode()
    }

    /// `None` for anything [`ToInit::encode`] does not write.
    pub fn decode(frame: &[u8]) -> Option<Self> {
        let Parts { kind, small, large, text: "" } = Parts::decode(frame)? else {
            return None;
        };
        match (kind, small, large) {
            (1, 0, 0) => Some(Self::Ping),
            (2, 0, key) => Some(Self::Store { key }),
            (3, 1.., first) => Some(Self::Forget { first, which: small }),
            (4, 0, 0) => Some(Self::Expect),
            (5, 0, 0) => Some(Self::Settle { pid: None }),
            (5, _, 0) => Some(Self::Settle { pid: Some(process(small)?) }),
            (6, _, 0) => Some(Self::Acknowledge { pid: process(small)? }),
            (7, 0, 0) => Some(Self::Shutdown),
            _ => None,
        }
    }
}

impl ToWorker {
    /// As bytes. A stage's name is cut after 48 bytes.
    pub fn encode(&self) -> [u8; FRAME_SIZE] {
        let mut parts = Parts::default();
        (parts.kind, parts.small, parts.large) = match *self {
            Self::Hello { generation, pid1 } => (1, generation, u64::from(pid1)),
            Self::Stage { ref name, at } => {
                parts.text = name;
                (2, 0, at)
            }
            Self::Listener { kind } => (3, listener_number(kind), 0),
            Self::Stored { key } => (4, 0, key),
            Self::Launcher { pid } => (5, pid.cast_unsigned(), 0),
            Self::Ready => (6, 0, 0),
            Self::Exit { pid, status } => (7, pid.cast_unsigned(), u64::from(status.cast_unsigned())),
            Self::Records => (8, 0, 0),
        };
        parts.encode()
    }

    /// `None` for anything [`ToWorker::encode`] does not write.
    pub fn decode(frame: &[u8]) -> Option<Self> {
        let Parts { kind, small, large, text } = Parts::decode(frame)?;
        match (kind, small, large, text) {
            (1, generation, 0 | 1, "") => Some(Self::Hello { generation, pid1: large == 1 }),
            (2, 0, at, name) => Some(Self::Stage { name: name.to_owned(), at }),
            (3, _, 0, "") => Some(Self::Listener { kind: listener(small)? }),
            (4, 0, key, "") => Some(Self::Stored { key }),
            (5, _, 0, "") => Some(Self::Launcher { pid: process(small)? }),
            (6, 0, 0, "") => Some(Self::Ready),
            (7, _, _, "") => {
                Some(Self::Exit { pid: process(small)?, status: u32::try_from(large).ok()?.cast_signed() })
            }
            (8, 0, 0, "") => Some(Self::Records),
            _ => None,
        }
    }
}

/// Only positive numbers name one process: to `kill(2)` the others are groups, or everyone.
fn process(number: u32) -> Option<i32> {
    i32::try_from(number).ok().filter(|&pid| pid > 0)
}

fn listener_number(kind: ListenerKind) -> u32 {
    match kind {
        ListenerKind::Rpc => 1,
        ListenerKind::Stdio => 2,
        ListenerKind::Log => 3,
        ListenerKind::Console => 4,
    }
}

fn listener(number: u32) -> Option<ListenerKind> {
    match number {
        1 => Some(ListenerKind::Rpc),
        2 => Some(ListenerKind::Stdio),
        3 => Some(ListenerKind::Log),
        4 => Some(ListenerKind::Console),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_to_init() -> Vec<ToInit> {
        vec![
            ToInit::Ping,
            ToInit::Store { key: u64::MAX },
            ToInit::Forget { first: 0, which: 1 },
            ToInit::Forget { first: u64::MAX, which: u32::MAX },
            ToInit::Expect,
            ToInit::Settle { pid: None },
            ToInit::Settle { pid: Some(i32::MAX) },
            ToInit::Acknowledge { pid: 1 },
            ToInit::Shutdown,
        ]
    }

    fn all_to_worker() -> Vec<ToWorker> {
        vec![
            ToWorker::Hello { generation: u32::MAX, pid1: true },
            ToWorker::Hello { generation: 0, pid1: false },
            ToWorker::Stage { name: "mounts".into(), at: u64::MAX },
            ToWorker::Stage { name: String::new(), at: 0 },
            ToWorker::Listener { kind: ListenerKind::Rpc },
            ToWorker::Listener { kind: ListenerKind::Stdio },
            ToWorker::Listener { kind: ListenerKind::Log },
            ToWorker::Listener { kind: ListenerKind::Console },
            ToWorker::Stored { key: 7 },
            ToWorker::Launcher { pid: 9 },
            ToWorker::Records,
            ToWorker::Ready,
            ToWorker::Exit { pid: 1, status: -1 },
            ToWorker::Exit { pid: i32::MAX, status: 192 },
        ]
    }

    /// A xorshift generator: the test needs variety, and the same bytes on every run.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn messages_survive_the_crossing() {
        for message in all_to_init() {
            assert_eq!(ToInit::decode(&message.encode()), Some(message));
        }
        for message in all_to_worker() {
            assert_eq!(ToWorker::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn a_long_stage_name_is_cut_between_characters() {
        let sent = ToWorker::Stage { name: "ü".repeat(40), at: 1 };
        assert_eq!(ToWorker::decode(&sent.encode()), Some(ToWorker::Stage { name: "ü".repeat(24), at: 1 }));
    }

    #[test]
    fn random_bytes_decode_to_nothing_or_to_what_encodes_back() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let mut decoded = 0;
        for round in 0..100_000 {
            let mut frame = [0u8; FRAME_SIZE];
            let filled = if round % 2 == 0 { FRAME_SIZE } else { 16 };
            frame[..filled].fill_with(|| random(&mut state) as u8);
            if round % 2 == 1 {
                // Mostly plausible frames: they reach past the first check.
                frame[0] %= 9;
                frame[1..4].fill(0);
                frame[9..16].fill(0);
                frame[8] &= 1;
            }
            if let Some(message) = ToInit::decode(&frame) {
                assert_eq!(message.encode(), frame);
                decoded += 1;
            }
            if let Some(message) = ToWorker::decode(&frame) {
                assert_eq!(message.encode(), frame);
                decoded += 1;
            }
        }
        assert!(decoded > 10_000, "{decoded}");
    }

    #[test]
    fn short_and_long_packets_are_void() {
        let frame = ToInit::Ping.encode();
        for length in 0..FRAME_SIZE {
            assert_eq!(ToInit::decode(&frame[..length]), None);
        }
        assert_eq!(ToInit::decode(&[frame, frame].concat()), None);
    }

    #[test]
    fn no_message_can_name_a_group_of_processes() {
        for number in [0u32, u32::MAX, i32::MIN.cast_unsigned()] {
            let frame = Parts { kind: 6, small: number, ..Parts::default() }.encode();
            assert_eq!(ToInit::decode(&frame), None);
        }
    }
}
