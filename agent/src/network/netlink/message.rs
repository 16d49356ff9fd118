//! The bytes of netlink: headers, attributes, and the walk over both.
//!
//! Everything read here is checked against the length of what holds it, whoever wrote it.

use netlink_packet_core::{DefaultNla, Emitable, NLA_HEADER_SIZE, NlasIterator};

use super::{NetlinkError, Result, bytes_of};

/// `struct nlmsghdr`: length, type, flags, sequence, port.
const HEADER: usize = 16;

/// A request: its type, and flags beside those of every request, and its body.
#[derive(Debug, Clone)]
pub(in crate::network) struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    pub(super) fn new(kind: u16, flags: u16, header: &impl Emitable) -> Self {
        Self { kind, flags, body: bytes_of(header) }
    }

    /// One whose body came from the kernel.
    pub(super) fn again(kind: u16, flags: u16, body: Vec<u8>) -> Self {
        Self { kind, flags, body }
    }

    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.body.extend(bytes_of(&DefaultNla::new(kind, value.to_vec())));
        self
    }

    pub(super) fn with_number(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Bytes with its header, without padding.
    pub(super) fn length(&self) -> usize {
        HEADER + self.body.len()
    }

    pub(super) fn header(&self, flags: u16, sequence: u32) -> [u8; HEADER] {
        let length = u32::try_from(self.length()).unwrap_or(u32::MAX);
        let mut header = [0; HEADER];
        let fields = length
            .to_ne_bytes()
            .into_iter()
            .chain(self.kind.to_ne_bytes())
            .chain((self.flags | flags).to_ne_bytes())
            .chain(sequence.to_ne_bytes());
        header.iter_mut().zip(fields).for_each(|(place, byte)| *place = byte);
        header
    }
}

/// One message of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// The messages of a datagram; ends with the first that is none.
pub(super) fn frames(mut datagram: &[u8]) -> impl Iterator<Item = Result<Frame<'_>>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let frame = frame(datagram);
        let taken =
            frame.as_ref().map_or(datagram.len(), |frame| (HEADER + frame.payload.len()).next_multiple_of(4));
        datagram = datagram.get(taken..).unwrap_or_default();
        Some(frame)
    })
}

fn frame(datagram: &[u8]) -> Result<Frame<'_>> {
    let short = NetlinkError::Malformed("a message is shorter than its header says");
    let (Some(length), Some(kind), Some(flags), Some(sequence)) =
        (number(datagram, 0), half(datagram, 4), half(datagram, 6), number(datagram, 8))
    else {
        return Err(short);
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let payload = datagram.get(HEADER..length).ok_or(short)?;
    Ok(Frame { kind, flags, sequence, payload })
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The attributes behind a header. Those behind one that is no attribute are not seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let attributes = NlasIterator::new(self.0).map_while(std::result::Result::ok);
        attributes.filter_map(|attribute| {
            let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
            Some((kind, attribute.into_inner().get(NLA_HEADER_SIZE..length)?))
        })
    }

    pub(super) fn get(self, wanted: u16) -> Option<&'a [u8]> {
        self.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
    }

    pub(super) fn number(self, wanted: u16) -> Option<u32> {
        number(self.get(wanted)?, 0)
    }

    pub(super) fn text(self, wanted: u16) -> Option<String> {
        text(self.get(wanted)?)
    }
}

/// A NUL-terminated string.
pub(super) fn text(value: &[u8]) -> Option<String> {
    let text = value.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}
