//! The message in a frame: `Request` in, `Response` out, both parsed and written by hand.
//!
//! ```text
//! Request  { service = 1, method = 2, payload = 3 (bytes), timeout_nano = 4, metadata = 5 (repeated KeyValue) }
//! Response { status = 1 { code = 1, message = 2, details = 3 }, payload = 2 (bytes) }
//! ```
//!
//! A request is four borrowed fields: nothing is allocated, so the envelope cannot amplify.

use super::{
    limits::{METADATA_BYTES, METADATA_PAIRS},
    reply::Status,
    wire::{Fields, Malformed, Value},
};

/// A call as it lies in the read buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request<'a> {
    /// Such as `grpc.AgentService`.
    pub service: &'a str,
    /// Such as `CreateContainer`.
    pub method: &'a str,
    /// The encoded request message.
    pub payload: &'a [u8],
    /// What is left of the caller's time, in nanoseconds; 0 is no limit.
    pub timeout_nano: i64,
    /// Where its span belongs.
    #[cfg(feature = "tracing")]
    pub trace: crate::observe::tracing::Headers<'a>,
}

/// Why a frame's body is not a request that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Not protobuf.
    #[error("the request envelope is malformed: {0}")]
    Malformed(#[from] Malformed),
    /// A string that is not UTF-8.
    #[error("the request envelope is malformed: {0} is not UTF-8")]
    Text(&'static str),
    /// More than 64 pairs or 16 KiB.
    #[error("the request carries more metadata than {METADATA_PAIRS} pairs or {METADATA_BYTES} bytes")]
    Metadata,
}

impl From<EnvelopeError> for Status {
    fn from(error: EnvelopeError) -> Self {
        Self::invalid(error)
    }
}

/// Reads a frame's body. Of a repeated field the last counts, and unknown ones are skipped, as protobuf has it.
pub fn parse(body: &[u8]) -> Result<Request<'_>, EnvelopeError> {
    let mut request = Request::default();
    let (mut pairs, mut bytes) = (0, 0);
    let mut fields = Fields::new(body);
    while let Some(field) = fields.next_field()? {
        match field {
            (1, Value::Bytes(text)) => request.service = utf8(text, "service")?,
            (2, Value::Bytes(text)) => request.method = utf8(text, "method")?,
            (3, Value::Bytes(payload)) => request.payload = payload,
            (4, Value::Varint(nanos)) => request.timeout_nano = nanos as i64,
            (5, Value::Bytes(pair)) => {
                pairs += 1;
                bytes += pair.len();
                if pairs > METADATA_PAIRS || bytes > METADATA_BYTES {
                    return Err(EnvelopeError::Metadata);
                }
                #[cfg(feature = "tracing")]
                if let Some((key, value)) = key_value(pair) {
                    request.trace.note(key, value);
                }
            }
            (1..=5, _) => return Err(Malformed.into()),
            _ => {}
        }
    }
    Ok(request)
}

/// A pair of metadata, if it is one of texts.
#[cfg(feature = "tracing")]
fn key_value(pair: &[u8]) -> Option<(&str, &str)> {
    let (mut key, mut value) = ("", "");
    let mut fields = Fields::new(pair);
    while let Some(field) = fields.next_field().ok()? {
        match field {
            (1, Value::Bytes(text)) => key = std::str::from_utf8(text).ok()?,
            (2, Value::Bytes(text)) => value = std::str::from_utf8(text).ok()?,
            _ => {}
        }
    }
    Some((key, value))
}

fn utf8<'a>(bytes: &'a [u8], field: &'static str) -> Result<&'a str, EnvelopeError> {
    std::str::from_utf8(bytes).map_err(|_| EnvelopeError::Text(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        out.extend(super::super::wire::varint(bytes.len() as u64));
        out.extend_from_slice(bytes);
        out
    }

    #[test]
    fn the_fields_are_found_wherever_they_are() {
        let body = [
            vec![0x20, 0x80, 0x94, 0xeb, 0xdc, 0x03],
            field(9, b"unknown"),
            field(3, b"payload"),
            field(2, b"Check"),
            field(5, &field(1, b"trace")),
            field(1, b"old"),
            field(1, b"grpc.Health"),
        ]
        .concat();
        let request = parse(&body).unwrap();
        assert_eq!((request.service, request.method), ("grpc.Health", "Check"));
        assert_eq!((request.payload, request.timeout_nano), (&b"payload"[..], 1_000_000_000));
        let negative = [0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(parse(&negative).unwrap().timeout_nano, -1);
    }

    #[test]
    fn metadata_is_bounded_in_pairs_and_bytes() {
        let pair = field(5, b"");
        assert!(parse(&pair.repeat(METADATA_PAIRS)).is_ok());
        assert_eq!(parse(&pair.repeat(METADATA_PAIRS + 1)), Err(EnvelopeError::Metadata));
        assert!(parse(&field(5, &vec![0; METADATA_BYTES])).is_ok());
        assert_eq!(parse(&field(5, &vec![0; METADATA_BYTES + 1])), Err(EnvelopeError::Metadata));
    }

    #[test]
    fn a_wrong_type_or_wrong_text_is_refused() {
        assert_eq!(parse(&[0x08, 1]), Err(Malformed.into()));
        assert_eq!(parse(&field(1, &[0xff])), Err(EnvelopeError::Text("service")));
        assert_eq!(parse(&field(2, &[0xc3])), Err(EnvelopeError::Text("method")));
    }
}
