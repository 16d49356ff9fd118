//! The protobuf wire format, read in place and written by hand.
//!
//! This is what the envelope and the decode budget need: fields as they lie in the buffer, nothing stored and
//! nothing allocated. Groups are refused, since proto3 has none and they are the only construct whose end must
//! be searched for.

/// The bytes are not a protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed protobuf message")]
pub struct Malformed;

/// A field's value, borrowed from the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer, boolean or enum.
    Varint(u64),
    /// Eight or four bytes.
    Fixed,
    /// A string, bytes, a message or a packed list.
    Bytes(&'a [u8]),
}

/// Walks over the fields of one message.
#[derive(Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Over `message`.
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(Malformed)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Malformed> {
        let count = usize::try_from(count).map_err(|_| Malformed)?;
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next field: its number and value. `None` at the end of the message.
    pub fn next_field(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        let number = tag >> 3;
        if number == 0 {
            return Err(Malformed);
        }
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok(Some((number, value)))
    }
}

/// How many bytes `value` takes as a varint.
pub fn varint_size(value: u64) -> usize {
    ((64 - (value | 1).leading_zeros()).div_ceil(7)) as usize
}

/// The bytes of `value` as a varint, in order.
pub fn varint(value: u64) -> impl Iterator<Item = u8> {
    let size = varint_size(value);
    (0..size).map(move |i| {
        let low = (value >> (7 * i)) as u8 & 0x7f;
        if i + 1 < size { low | 0x80 } else { low }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_agree_with_the_protobuf_crate() {
        for value in [0, 1, 127, 128, 300, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            let mut theirs = Vec::new();
            let mut out = protobuf::CodedOutputStream::vec(&mut theirs);
            out.write_raw_varint64(value).unwrap();
            drop(out);
            let ours: Vec<u8> = varint(value).collect();
            assert_eq!(ours, theirs);
            assert_eq!(varint_size(value), ours.len());
            assert_eq!(Fields::new(&ours).varint(), Ok(value));
        }
    }

    #[test]
    fn every_truncation_is_an_error_not_a_panic() {
        let message = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let whole = [(1, Value::Varint(150)), (2, Value::Bytes(b"hi")), (3, Value::Fixed), (4, Value::Fixed)];
        for end in 0..=message.len() {
            let mut fields = Fields::new(&message[..end]);
            let mut seen = Vec::new();
            let result = loop {
                match fields.next_field() {
                    Ok(Some(field)) => seen.push(field),
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            assert_eq!(result.is_ok(), [0, 3, 7, 12, 21].contains(&end), "cut at {end}");
            assert!(whole.starts_with(&seen));
        }
    }

    #[test]
    fn groups_field_zero_and_overlong_varints_are_malformed() {
        for bad in [&[0x0b, 0x0c][..], &[0x00, 0x00], &[0xff; 11], &[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
            assert_eq!(Fields::new(bad).next_field(), Err(Malformed));
        }
    }
}
