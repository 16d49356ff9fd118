//! The ten bytes before every ttrpc message.

/// How many bytes a header has.
pub const HEADER: usize = 10;

/// A call.
pub const REQUEST: u8 = 1;
/// Its answer.
pub const RESPONSE: u8 = 2;

/// Length of the body, the stream it belongs to, and what it is. All integers are big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the body.
    pub length: u32,
    /// Chosen by the client: odd and rising.
    pub stream: u32,
    /// 1 request, 2 response, 3 data.
    pub kind: u8,
    /// Only streams use them; no method here is one.
    pub flags: u8,
}

impl Header {
    /// Reads a header. Any ten bytes are one.
    pub fn parse([a, b, c, d, e, f, g, h, kind, flags]: [u8; HEADER]) -> Self {
        Self {
            length: u32::from_be_bytes([a, b, c, d]),
            stream: u32::from_be_bytes([e, f, g, h]),
            kind,
            flags,
        }
    }

    /// Writes it.
    pub fn to_bytes(self) -> [u8; HEADER] {
        let ([a, b, c, d], [e, f, g, h]) = (self.length.to_be_bytes(), self.stream.to_be_bytes());
        [a, b, c, d, e, f, g, h, self.kind, self.flags]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_published_one() {
        let bytes = [0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, REQUEST, 4];
        let header = Header { length: 258, stream: u32::MAX, kind: REQUEST, flags: 4 };
        assert_eq!(Header::parse(bytes), header);
        assert_eq!(header.to_bytes(), bytes);
    }
}
