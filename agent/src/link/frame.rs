//! The 64 bytes that every message between init and worker consists of.
//!
//! ```text
//!   0 kind | 1 length of text | 2-3 zero | 4-7 small | 8-15 large | 16-63 text, UTF-8, padded with zeros
//! ```
//! Numbers are little-endian. Nothing is left undefined, so any two equal messages are equal bytes.

/// The size of a frame. Sixteen bytes would do but for the names of boot stages.
pub const FRAME_SIZE: usize = 64;

/// How much text fits.
pub const TEXT_SIZE: usize = 48;

/// A frame taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parts<'a> {
    pub kind: u8,
    pub small: u32,
    pub large: u64,
    pub text: &'a str,
}

impl<'a> Parts<'a> {
    /// Text that does not fit is cut.
    pub(super) fn encode(&self) -> [u8; FRAME_SIZE] {
        let text = self.text.get(..self.text.floor_char_boundary(TEXT_SIZE)).unwrap_or_default();
        let bytes = [self.kind, text.len() as u8, 0, 0]
            .into_iter()
            .chain(self.small.to_le_bytes())
            .chain(self.large.to_le_bytes())
            .chain(text.bytes());
        let mut frame = [0; FRAME_SIZE];
        frame.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = byte);
        frame
    }

    /// `None` for anything that [`Parts::encode`] does not write.
    pub(super) fn decode(frame: &'a [u8]) -> Option<Self> {
        let frame: &[u8; FRAME_SIZE] = frame.try_into().ok()?;
        let (&[kind, length, 0, 0], rest) = frame.split_first_chunk::<4>()? else {
            return None;
        };
        let (&small, rest) = rest.split_first_chunk::<4>()?;
        let (&large, rest) = rest.split_first_chunk::<8>()?;
        let (text, padding) = rest.split_at_checked(usize::from(length))?;
        if padding.iter().any(|&byte| byte != 0) {
            return None;
        }
        let text = str::from_utf8(text).ok()?;
        Some(Self { kind, small: u32::from_le_bytes(small), large: u64::from_le_bytes(large), text })
    }
}
