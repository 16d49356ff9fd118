//! The messages between worker and launcher.
//!
//! A request is eight bytes and, beside them, the plan in a memfd followed by the descriptors of its slots. A reply
//! repeats the request's number, so that the reply to a call that was given up cannot be taken for another's.

/// The most bytes a reply takes; a longer error text is cut.
pub const REPLY_SIZE: usize = 512;

/// Asks for one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchRequest {
    /// Chosen by the worker, never repeated within one link.
    pub id: u64,
}

impl LaunchRequest {
    /// As bytes.
    pub fn encode(self) -> [u8; 8] {
        self.id.to_le_bytes()
    }

    /// `None` if it is not a request.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        Some(Self { id: u64::from_le_bytes(packet.try_into().ok()?) })
    }
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchReply {
    /// The process exists; its pidfd comes with this.
    Made {
        /// The request's.
        id: u64,
        /// In the launcher's PID namespace, which is init's.
        pid: i32,
    },
    /// There is no process.
    Failed {
        /// The request's.
        id: u64,
        /// Of the call that failed; 0 if it was none.
        errno: i32,
        /// What failed, for people.
        text: String,
    },
}

impl LaunchReply {
    /// The number of the request this answers.
    pub fn id(&self) -> u64 {
        match *self {
            Self::Made { id, .. } | Self::Failed { id, .. } => id,
        }
    }

    /// As bytes, at most [`REPLY_SIZE`] of them.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, number, text) = match self {
            Self::Made { pid, .. } => (1u32, *pid, ""),
            Self::Failed { errno, text, .. } => (2u32, *errno, text.as_str()),
        };
        let text = text.get(..text.floor_char_boundary(REPLY_SIZE - 16)).unwrap_or_default();
        let mut packet = Vec::with_capacity(16 + text.len());
        packet.extend(kind.to_le_bytes());
        packet.extend(number.to_le_bytes());
        packet.extend(self.id().to_le_bytes());
        packet.extend(text.bytes());
        packet
    }

    /// `None` if it is not a reply.
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let (&kind, rest) = packet.split_first_chunk::<4>()?;
        let (&number, rest) = rest.split_first_chunk::<4>()?;
        let (&id, text) = rest.split_first_chunk::<8>()?;
        let (number, id) = (i32::from_le_bytes(number), u64::from_le_bytes(id));
        match u32::from_le_bytes(kind) {
            1 if number > 0 && text.is_empty() => Some(Self::Made { id, pid: number }),
            2 => Some(Self::Failed { id, errno: number, text: str::from_utf8(text).ok()?.to_owned() }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_survive_the_crossing() {
        for reply in [
            LaunchReply::Made { id: u64::MAX, pid: 1 },
            LaunchReply::Failed { id: 0, errno: 12, text: "cannot clone".into() },
            LaunchReply::Failed { id: 1, errno: 0, text: String::new() },
        ] {
            assert_eq!(LaunchReply::decode(&reply.encode()), Some(reply));
        }
    }

    #[test]
    fn a_long_text_is_cut_and_a_short_packet_is_void() {
        let packet = LaunchReply::Failed { id: 1, errno: 1, text: "é".repeat(600) }.encode();
        assert_eq!(packet.len(), REPLY_SIZE);
        assert!(LaunchReply::decode(&packet).is_some());
        assert_eq!(LaunchReply::decode(&packet[..15]), None);
        assert_eq!(LaunchRequest::decode(&packet[..7]), None);
    }
}
