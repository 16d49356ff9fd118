//! What a call is answered with.
//!
//! A reply's body may be leased: the bytes stay their owner's until the last of them is in the peer's socket,
//! and a reply that is dropped before that gives them back. Output is read this way, so a client that vanished
//! costs no output.

use std::fmt;

use protobuf::Message;

use super::{limits::ERROR_TEXT, wire};

/// The status codes of ttrpc, which are gRPC's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the published ones")]
pub enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

/// Why a call failed: what the host sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The kind of failure.
    pub code: Code,
    /// One printable line of at most [`ERROR_TEXT`] bytes.
    pub message: String,
}

impl Status {
    /// Makes a status; the text is cut to its bound and control characters in it are escaped, because parts of
    /// it come from the wire and hosts write it to terminals and logs.
    pub fn new(code: Code, text: impl fmt::Display) -> Self {
        let mut message = String::new();
        for character in text.to_string().chars() {
            let before = message.len();
            if character.is_control() {
                message.extend(character.escape_default());
            } else {
                message.push(character);
            }
            if message.len() > ERROR_TEXT {
                message.truncate(before);
                break;
            }
        }
        Self { code, message }
    }

    /// The request is wrong whatever state the guest is in.
    pub fn invalid(text: impl fmt::Display) -> Self {
        Self::new(Code::InvalidArgument, text)
    }

    /// Its encoding as the `Status` message of the envelope.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend([0x08, self.code as u8, 0x12]);
        out.extend(wire::varint(self.message.len() as u64));
        out.extend_from_slice(self.message.as_bytes());
    }
}

/// Bytes that belong to somebody else until the peer has them.
pub trait Lease {
    /// The bytes to send; always the same ones.
    fn bytes(&self) -> &[u8];

    /// The last of them is in the peer's socket.
    fn sent(self: Box<Self>);
}

/// The bytes of a reply, or part of them.
pub(super) enum Body {
    Owned(Vec<u8>),
    Leased(Box<dyn Lease>),
}

impl Body {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Leased(lease) => lease.bytes(),
        }
    }
}

/// A successful answer: an encoded message.
pub struct Reply {
    /// What comes before the body: a field's tag and length.
    pub(super) prefix: Prefix,
    pub(super) body: Body,
}

impl Reply {
    /// A message without fields.
    pub fn empty() -> Self {
        Self::message(Vec::new())
    }

    /// An encoded message.
    pub fn message(bytes: Vec<u8>) -> Self {
        Self { prefix: Prefix::default(), body: Body::Owned(bytes) }
    }

    /// A message whose only field is `number`, of type bytes, with what `lease` holds. Nothing is copied.
    pub fn leased_field(number: u32, lease: Box<dyn Lease>) -> Self {
        let length = lease.bytes().len();
        let mut prefix = Prefix::default();
        if length > 0 {
            prefix.extend(wire::varint(u64::from(number) << 3 | 2));
            prefix.extend(wire::varint(length as u64));
        }
        Self { prefix, body: Body::Leased(lease) }
    }

    /// A message without fields that runs `then` once it is in the peer's socket.
    pub fn after_sent(then: impl FnOnce() + 'static) -> Self {
        Self::told(Vec::new(), then)
    }

    /// An encoded message that runs `then` once it is in the peer's socket.
    pub(super) fn told(bytes: Vec<u8>, then: impl FnOnce() + 'static) -> Self {
        Self { prefix: Prefix::default(), body: Body::Leased(Box::new(Told { bytes, then })) }
    }

    /// Whether nobody waits to hear that it was sent.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.body, Body::Owned(_))
    }

    /// Bytes of the encoded message.
    pub fn size(&self) -> usize {
        self.prefix.as_slice().len() + self.body.bytes().len()
    }

    /// A copy of the encoded message.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        [self.prefix.as_slice(), self.body.bytes()].concat()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("size", &self.size()).finish()
    }
}

struct Told<F> {
    bytes: Vec<u8>,
    then: F,
}

impl<F: FnOnce()> Lease for Told<F> {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn sent(self: Box<Self>) {
        (self.then)()
    }
}

/// A tag and a length: at most ten bytes of varints, so no allocation.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Prefix {
    bytes: [u8; 12],
    used: usize,
}

impl Prefix {
    fn extend(&mut self, bytes: impl Iterator<Item = u8>) {
        for byte in bytes {
            if let Some(slot) = self.bytes.get_mut(self.used) {
                *slot = byte;
                self.used += 1;
            }
        }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

/// A message as a reply.
pub(super) fn encode(message: &impl Message) -> Result<Reply, Status> {
    let bytes = message.write_to_bytes();
    bytes.map(Reply::message).map_err(|error| Status::new(Code::Internal, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_are_bounded_and_printable() {
        let status = Status::invalid(format_args!("id \"a\u{1b}[31m\n\0\" {}", "é".repeat(4000)));
        assert!(status.message.starts_with(r#"id "a\u{1b}[31m\n\u{0}" éé"#), "{}", status.message);
        assert!(status.message.len() <= ERROR_TEXT && status.message.len() > ERROR_TEXT - 8);
    }

    #[test]
    fn a_leased_field_is_the_message_protobuf_would_write() {
        use berth_protocols::agent::ReadStreamResponse;
        use protobuf::Message;

        struct Bytes(Vec<u8>);
        impl Lease for Bytes {
            fn bytes(&self) -> &[u8] {
                &self.0
            }
            fn sent(self: Box<Self>) {}
        }
        for size in [0, 1, 127, 128, 70_000] {
            let data = vec![7u8; size];
            let reply = Reply::leased_field(1, Box::new(Bytes(data.clone())));
            let ours = [reply.prefix.as_slice(), reply.body.bytes()].concat();
            assert_eq!(ours, ReadStreamResponse { data, ..Default::default() }.write_to_bytes().unwrap());
        }
    }
}
