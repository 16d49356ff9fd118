//! Requests that are nearly right: a sound one is taken apart into the fields of protobuf's wire format, a few of
//! them are changed, and sometimes bytes of what comes out.
//!
//! Fields are found by the format alone, so text that happens to look like a message is changed as one; that is as
//! good a change as any. The same seed gives the same requests, on every machine.

/// A field as it goes over the wire.
#[derive(Debug, Clone)]
struct Field {
    number: u64,
    /// What is said of its type; its value is written as what it is.
    kind: u64,
    value: Value,
    /// The length that is said instead of the right one.
    lie: Option<u64>,
}

#[derive(Debug, Clone)]
enum Value {
    Varint(u64),
    Fixed(Vec<u8>),
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// Numbers at the edges of what fields hold.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    127,
    128,
    4096,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    i64::MIN as u64,
    -2_i64 as u64,
    u64::MAX,
];

/// What names and paths should not be.
const TEXTS: [&[u8]; 14] = [
    b"",
    b".",
    b"..",
    b"/",
    b"../../../etc/passwd",
    b"/proc/self/root/etc",
    b"a\0b",
    b"a\nb",
    b"-1",
    b"99999999999999999999",
    b"\xff\xfe",
    "\u{202e}\u{fe0f}x".as_bytes(),
    &[b'a'; 300],
    &[b'/'; 5000],
];

/// Makes wrong requests of a right one.
#[derive(Debug, Clone)]
pub struct Mutator {
    sound: Vec<Field>,
    random: u64,
}

impl Mutator {
    /// Of `request`, by chance that begins with `seed`.
    pub fn new(request: &[u8], seed: u64) -> Self {
        Self { sound: parse(request).expect("a sound request"), random: seed ^ 0x9e37_79b9_7f4a_7c15 }
    }

    /// The next one.
    pub fn next_request(&mut self) -> Vec<u8> {
        let mut fields = self.sound.clone();
        // Most have one thing wrong: what has more is seldom looked at beyond the first.
        for _ in 0..self.one_of(&[1, 1, 1, 2, 4]) {
            self.change(&mut fields);
        }
        let mut bytes = Vec::new();
        encode(&fields, &mut bytes);
        if self.below(4) == 0 {
            self.spoil(&mut bytes);
        }
        bytes
    }

    fn below(&mut self, count: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % count
    }

    fn one_of<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.below(things.len())]
    }

    /// Changes one field, at any depth.
    fn change(&mut self, fields: &mut Vec<Field>) {
        let Some(at) = (!fields.is_empty()).then(|| self.below(fields.len())) else {
            fields.push(self.stranger());
            return;
        };
        if self.below(4) > 0
            && let Value::Message(inner) = &mut fields[at].value
        {
            return self.change(inner);
        }
        match self.below(10) {
            0 => {
                let copies = if self.below(50) == 0 { 1000 } else { 1 + self.below(3) };
                let copy = fields[at].clone();
                // A thousand of the largest would only test how fast a reader is.
                let most = 1 + (64 << 10) / size(&copy);
                fields.splice(at..at, std::iter::repeat_n(copy, copies.min(most)));
            }
            1 => drop(fields.remove(at)),
            2 => {
                let other = self.below(fields.len());
                fields.swap(at, other);
            }
            3 => fields[at].kind = self.below(8) as u64,
            4 => fields[at].number ^= 1 << self.below(30),
            5 => fields.insert(at, self.stranger()),
            6 => fields[at].lie = Some(self.one_of(&NUMBERS)),
            _ => self.worsen(&mut fields[at].value),
        }
    }

    /// Gives a field another value of its type.
    fn worsen(&mut self, value: &mut Value) {
        match value {
            Value::Varint(number) => {
                *number =
                    if self.below(2) == 0 { *number ^ (1 << self.below(64)) } else { self.one_of(&NUMBERS) };
            }
            Value::Bytes(bytes) if self.below(2) == 0 => *bytes = self.one_of(&TEXTS).to_vec(),
            Value::Fixed(bytes) | Value::Bytes(bytes) => self.spoil(bytes),
            Value::Message(_) => *value = Value::Bytes(self.one_of(&TEXTS).to_vec()),
        }
    }

    /// A field that is not expected where it is.
    fn stranger(&mut self) -> Field {
        let (kind, value) = match self.below(4) {
            0 => (VARINT, Value::Varint(self.one_of(&NUMBERS))),
            1 => (FIXED64, Value::Fixed(vec![0xff; 8])),
            2 => (FIXED32, Value::Fixed(vec![0x80; 4])),
            _ => (BYTES, Value::Bytes(self.one_of(&TEXTS).to_vec())),
        };
        Field { number: 1 + self.below(40) as u64, kind, value, lie: None }
    }

    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        match (self.below(4), bytes.len()) {
            (0 | 1, length @ 1..) => {
                let at = self.below(length);
                bytes[at] ^= 1 << self.below(8);
            }
            (2, length @ 1..) => bytes.truncate(self.below(length)),
            (_, length) => bytes.insert(self.below(length + 1), self.below(256) as u8),
        }
    }
}

fn parse(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            VARINT => Value::Varint(varint(&mut bytes)?),
            FIXED64 => Value::Fixed(bytes.split_off(..8)?.to_vec()),
            FIXED32 => Value::Fixed(bytes.split_off(..4)?.to_vec()),
            BYTES => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let inner = bytes.split_off(..length)?;
                let message = if inner.is_empty() { None } else { parse(inner) };
                message.map_or_else(|| Value::Bytes(inner.to_vec()), Value::Message)
            }
            _ => return None,
        };
        if key < 8 {
            return None;
        }
        fields.push(Field { number: key >> 3, kind: key & 7, value, lie: None });
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn encode(fields: &[Field], out: &mut Vec<u8>) {
    for field in fields {
        put(field.number << 3 | field.kind, out);
        match &field.value {
            Value::Varint(number) => put(*number, out),
            Value::Fixed(bytes) => out.extend(bytes),
            Value::Bytes(bytes) => {
                put(field.lie.unwrap_or(bytes.len() as u64), out);
                out.extend(bytes);
            }
            Value::Message(inner) => {
                let mut bytes = Vec::new();
                encode(inner, &mut bytes);
                put(field.lie.unwrap_or(bytes.len() as u64), out);
                out.extend(bytes);
            }
        }
    }
}

fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// About how many bytes it takes.
fn size(field: &Field) -> usize {
    4 + match &field.value {
        Value::Varint(_) => 4,
        Value::Fixed(bytes) | Value::Bytes(bytes) => bytes.len(),
        Value::Message(inner) => inner.iter().map(size).sum(),
    }
}
