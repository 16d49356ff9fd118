//! The part of D-Bus's wire format that is spoken with systemd: little-endian messages, written from values
//! and read field by field.
//!
//! Every value is aligned to its size, counted from the start of the message; the body starts at a multiple
//! of 8, so it can be made on its own. What is read is bounded by the message and never trusted to be whole.

/// The longest message accepted; systemd's replies and signals here are some hundred bytes.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// What a message begins with, up to the length of its header fields.
pub(super) const FIXED: usize = 16;

/// A value to be sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    U64(u64),
    Text(String),
    Bytes(Vec<u8>),
    Numbers(Vec<u32>),
    /// `a(sv)`: names and values of properties.
    Properties(Vec<(&'static str, Value)>),
    /// `a(sa(sv))`, which is always empty here: further units.
    NoUnits,
}

impl Value {
    fn signature(&self) -> &'static str {
        match self {
            Self::Bool(_) => "b",
            Self::U64(_) => "t",
            Self::Text(_) => "s",
            Self::Bytes(_) => "ay",
            Self::Numbers(_) => "au",
            Self::Properties(_) => "a(sv)",
            Self::NoUnits => "a(sa(sv))",
        }
    }
}

/// A method to be called.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Nobody on systemd's own socket, which has only one peer.
    pub(super) destination: Option<&'a str>,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
    pub(super) arguments: &'a [Value],
}

impl Call<'_> {
    pub(super) fn to_bytes(&self, serial: u32) -> Vec<u8> {
        let mut body = Writer::default();
        self.arguments.iter().for_each(|argument| body.value(argument));
        let signature: String = self.arguments.iter().map(Value::signature).collect();

        let mut message = Writer(vec![b'l', METHOD_CALL, 0, 1]);
        message.u32(body.0.len() as u32);
        message.u32(serial);
        message.array(8, |fields| {
            fields.field(PATH, "o", |field| field.text(self.path));
            fields.field(INTERFACE, "s", |field| field.text(self.interface));
            fields.field(MEMBER, "s", |field| field.text(self.member));
            if let Some(destination) = self.destination {
                fields.field(DESTINATION, "s", |field| field.text(destination));
            }
            if !signature.is_empty() {
                fields.field(SIGNATURE, "g", |field| field.signature(&signature));
            }
        });
        message.align(8);
        message.0.extend(body.0);
        message.0
    }
}

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;

// Header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn u32(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.0.push(signature.len() as u8);
        self.0.extend(signature.as_bytes());
        self.0.push(0);
    }

    fn field(&mut self, code: u8, signature: &str, value: impl FnOnce(&mut Self)) {
        self.align(8);
        self.0.push(code);
        self.signature(signature);
        value(self);
    }

    /// The length of an array does not count the padding before its first element.
    fn array(&mut self, align: usize, elements: impl FnOnce(&mut Self)) {
        self.u32(0);
        let length_at = self.0.len() - 4;
        self.align(align);
        let start = self.0.len();
        elements(self);
        let length = (self.0.len() - start) as u32;
        if let Some(place) = self.0.get_mut(length_at..length_at + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Bool(value) => self.u32(u32::from(*value)),
            Value::U64(value) => {
                self.align(8);
                self.0.extend(value.to_le_bytes());
            }
            Value::Text(text) => self.text(text),
            Value::Bytes(bytes) => self.array(1, |array| array.0.extend(bytes)),
            Value::Numbers(numbers) => self.array(4, |array| numbers.iter().for_each(|n| array.u32(*n))),
            Value::Properties(properties) => self.array(8, |array| {
                for (name, value) in properties {
                    array.align(8);
                    array.text(name);
                    array.signature(value.signature());
                    array.value(value);
                }
            }),
            Value::NoUnits => self.array(8, |_| ()),
        }
    }
}

/// A message that came.
#[derive(Debug, PartialEq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Its arguments, still to be read.
    body: Vec<u8>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    Reply { to: u32 },
    Error { to: u32, name: String },
    Signal { member: String },
    Other,
}

impl Message {
    /// How long the message is of which `head` are the first [`FIXED`] bytes.
    pub(super) fn length(head: &[u8; FIXED]) -> Option<usize> {
        let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?) as usize);
        // The other byte order is for messages from other machines, of which there are none.
        if head.first() != Some(&b'l') {
            return None;
        }
        let header = FIXED.checked_add(number(12)?)?.checked_next_multiple_of(8)?;
        header.checked_add(number(4)?).filter(|length| *length <= MAX_MESSAGE)
    }

    /// Reads a whole message.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut head = Reader { bytes, at: 1 };
        let kind = head.byte()?;
        head.at = 12;
        let end = head.u32()? as usize + FIXED;
        let (mut to, mut name, mut member) = (0, String::new(), String::new());
        while head.at < end {
            head.align(8)?;
            let code = head.byte()?;
            match (code, head.signature()?.as_str()) {
                (REPLY_SERIAL, "u") => to = head.u32()?,
                (ERROR_NAME, "s") => name = head.text()?,
                (MEMBER, "s") => member = head.text()?,
                (_, "s" | "o") => drop(head.text()?),
                (_, "g") => drop(head.signature()?),
                (_, "u") => drop(head.u32()?),
                _ => return None,
            }
        }
        let kind = match kind {
            METHOD_RETURN => Kind::Reply { to },
            ERROR => Kind::Error { to, name },
            SIGNAL => Kind::Signal { member },
            _ => Kind::Other,
        };
        Some(Self { kind, body: bytes.get(end.next_multiple_of(8)..)?.to_vec() })
    }

    /// Its arguments.
    pub(super) fn arguments(&self) -> Reader<'_> {
        Reader { bytes: &self.body, at: 0 }
    }
}

/// Reads values one after the other.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) -> Option<()> {
        self.at = self.at.checked_next_multiple_of(to)?;
        Some(())
    }

    fn take(&mut self, length: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.align(4)?;
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A string or an object path.
    pub(super) fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.byte()?;
        Some(text)
    }

    fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.byte()?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(arguments: &[Value]) -> Vec<u8> {
        let interface = "org.freedesktop.systemd1.Manager";
        Call { destination: None, path: "/a", interface, member: "Do", arguments }.to_bytes(7)
    }

    #[test]
    fn a_call_is_laid_out_as_the_specification_says() {
        let bytes = call(&[Value::Text("x".into()), Value::U64(u64::MAX), Value::Bytes(vec![1, 2])]);
        let head: &[u8; FIXED] = bytes[..FIXED].try_into().unwrap();
        assert_eq!(Message::length(head), Some(bytes.len()));
        assert_eq!(&head[..4], b"l\x01\x00\x01");
        assert_eq!(head[8..12], 7_u32.to_le_bytes());
        // s: 4 + 1 + 1, padding to 8, t: 8, ay: 4 + 2.
        assert_eq!(head[4..8], 22_u32.to_le_bytes());
        let body = &bytes[bytes.len() - 22..];
        assert_eq!(body, b"\x01\0\0\0x\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x02\0\0\0\x01\x02");
        assert!(Message::parse(&bytes).unwrap().kind == Kind::Other);
    }

    #[test]
    fn whatever_is_cut_off_or_damaged_is_no_message() {
        let whole =
            call(&[Value::Properties(vec![("PIDs", Value::Numbers(vec![1])), ("A", Value::Bool(true))])]);
        for end in 0..whole.len() {
            for damage in [0, 0x7f, 0xff] {
                let mut part = whole[..end].to_vec();
                part.extend_from_slice(&[damage; 3]);
                if let Some(message) = Message::parse(&part) {
                    let _ = (message.arguments().text(), message.arguments().u32());
                }
            }
        }
        let mut head = [0xff; FIXED];
        assert_eq!(Message::length(&head), None);
        head[0] = b'l';
        assert_eq!(Message::length(&head), None);
    }
}
