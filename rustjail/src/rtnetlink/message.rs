//! The form of rtnetlink messages: a header, a fixed part, attributes of type, length and value.
//!
//! Lengths are 16 bits wide here and 32 there, and everything is padded to four bytes. A value that does not
//! fit its length field is an error (CVE-2021-43784 was one that wrapped around), and what is read never
//! reaches beyond the bytes that came.

use std::io;

/// `struct nlmsghdr`.
const HEADER: usize = 16;

/// A request being written.
#[derive(Debug)]
pub(super) struct Request(Vec<u8>);

impl Request {
    /// Begins with the fixed part that the message `kind` has.
    pub(super) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        // Sequence number and port: one request at a time, and the kernel fills the port in.
        bytes.extend([0; 8]);
        bytes.extend(fixed);
        Self(bytes)
    }

    /// Adds an attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) -> io::Result<()> {
        let length = u16::try_from(value.len() + 4).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, "a netlink attribute is longer than 64 KiB")
        })?;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        Ok(())
    }

    /// Adds a text with the NUL that ends it.
    pub(super) fn text(&mut self, kind: u16, value: &str) -> io::Result<()> {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// The message with its length in place.
    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        let length = u32::try_from(self.0.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        if let Some(place) = self.0.first_chunk_mut::<4>() {
            *place = length.to_ne_bytes();
        }
        Ok(self.0)
    }
}

/// A message that was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'bytes> {
    pub(super) kind: u16,
    pub(super) body: &'bytes [u8],
}

/// The messages in `bytes`, as far as they are whole.
pub(super) fn messages(bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    split(bytes, |rest| {
        let (&length, rest) = rest.split_first_chunk::<4>()?;
        let (&kind, _) = rest.split_first_chunk::<2>()?;
        Some((u32::from_ne_bytes(length) as usize, u16::from_ne_bytes(kind)))
    })
    .filter_map(|(kind, message)| Some(Message { kind, body: message.get(HEADER..)? }))
}

/// The attributes in `bytes`, which begin after a fixed part of `skip` bytes.
pub(super) fn attributes(bytes: &[u8], skip: usize) -> impl Iterator<Item = (u16, &[u8])> {
    split(bytes.get(skip..).unwrap_or_default(), |rest| {
        let (&length, rest) = rest.split_first_chunk::<2>()?;
        let (&kind, _) = rest.split_first_chunk::<2>()?;
        Some((u16::from_ne_bytes(length).into(), u16::from_ne_bytes(kind)))
    })
    .filter_map(|(kind, attribute)| Some((kind, attribute.get(4..)?)))
}

/// Cuts `bytes` into pieces, of which `head` reads the length and the type.
fn split(bytes: &[u8], head: impl Fn(&[u8]) -> Option<(usize, u16)>) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, kind) = head(rest).filter(|(length, _)| *length > 0)?;
        let piece = rest.get(..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut request = Request::new(16, 1, &[7; 8]);
        request.text(3, "eth0").unwrap();
        request.attribute(28, &5_u32.to_ne_bytes()).unwrap();
        let bytes = request.finish().unwrap();
        let [message] = messages(&bytes).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((message.kind, &message.body[..8]), (16, &[7; 8][..]));
        let found: Vec<_> = attributes(message.body, 8).collect();
        assert_eq!(found, [(3, &b"eth0\0"[..]), (28, &5_u32.to_ne_bytes()[..])]);
    }

    /// CVE-2021-43784: a length that wraps around makes the value's own bytes attributes.
    #[test]
    fn a_value_longer_than_its_length_field_is_refused() {
        for length in [u16::MAX as usize - 3, u16::MAX as usize + 1, 1 << 17] {
            let mut request = Request::new(16, 1, &[]);
            assert!(request.attribute(3, &vec![0; length]).is_err(), "{length}");
            assert_eq!(messages(&request.finish().unwrap()).count(), 1);
        }
        let mut request = Request::new(16, 1, &[]);
        request.attribute(3, &vec![0; u16::MAX as usize - 4]).unwrap();
        let bytes = request.finish().unwrap();
        assert_eq!(attributes(messages(&bytes).next().unwrap().body, 0).count(), 1);
    }

    #[test]
    fn lengths_that_lie_end_the_walk() {
        let mut state = 1_u32;
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 28) as u8
                })
                .collect();
            for message in messages(&bytes) {
                let _ = attributes(message.body, 8).count();
            }
        }
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(messages(&[255; 64]).count(), 0);
    }
}
