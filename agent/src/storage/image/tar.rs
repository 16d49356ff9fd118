//! Reading tar archives: ustar, with the extensions of PAX and of GNU that layers have.
//!
//! One entry at a time, forwards only, so it works on a stream. What an entry declares is never a size to
//! allocate: names and headers have bounds of their own, and a content is read piece by piece. What is not
//! understood (sparse files, volumes) is an error, because to leave it out would be another image.

use std::{
    ffi::OsString,
    io::{self, Read},
    os::unix::ffi::OsStringExt,
};

const BLOCK: usize = 512;
/// `PATH_MAX`: no longer name can be made.
const MAX_NAME: u64 = 4096;
/// Of the extended header of one entry; the kernel takes 64 KiB for one attribute.
const MAX_HEADER: u64 = 1 << 20;
const XATTR: &str = "SCHILY.xattr.";

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The stream under it failed, or ended too early.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// It is no archive of a kind known here.
    #[error("{0}")]
    Broken(&'static str),
    /// An entry of a type that a layer does not have.
    #[error("it has an entry of the unknown type {0:?}")]
    Type(char),
}

/// What reading gives.
pub type Result<T> = std::result::Result<T, TarError>;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// With content.
    File,
    /// Another name of an entry before it.
    HardLink,
    /// See symlink(7).
    SymbolicLink,
    /// Character device.
    Character,
    /// Block device.
    Block,
    /// Perhaps with others in it.
    Directory,
    /// Named pipe.
    Fifo,
}

/// One entry, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is to be.
    pub kind: Kind,
    /// As the archive has it: anything but a NUL may be in it.
    pub path: OsString,
    /// Of both kinds of links.
    pub target: OsString,
    /// Permission bits, and the three above them.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Of a device: major and minor number.
    pub device: (u64, u64),
    /// Extended attributes, of any namespace.
    pub xattrs: Vec<(String, Vec<u8>)>,
    size: u64,
}

/// An archive on a stream.
#[derive(Debug)]
pub struct Archive<R> {
    stream: R,
    /// Of the present entry's content, and of the padding after it.
    content: u64,
    padding: u64,
}

/// What extended headers said about the entry to come.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    modified: Option<(i64, i64)>,
    xattrs: Vec<(String, Vec<u8>)>,
}

impl<R: Read> Archive<R> {
    /// Over `stream`, which begins with a header.
    pub fn new(stream: R) -> Self {
        Self { stream, content: 0, padding: 0 }
    }

    /// The next entry; what is left of the present one's content is passed over.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        let mut extended = Extended::default();
        loop {
            self.pass_over()?;
            let mut block = [0; BLOCK];
            if !self.read_block(&mut block)? {
                return Ok(None);
            }
            let header = Header(&block);
            header.verify()?;
            let size = header.size()?;
            match header.kind() {
                b'x' => extended.read(&self.take(size, MAX_HEADER)?)?,
                // What a global header says is for the archive as a whole; layers have comments in them.
                b'g' => drop(self.take(size, MAX_HEADER)?),
                b'L' => extended.path = Some(until_nul(&self.take(size, MAX_NAME + 1)?).to_vec()),
                b'K' => extended.target = Some(until_nul(&self.take(size, MAX_NAME + 1)?).to_vec()),
                _ => {
                    let entry = header.entry(extended)?;
                    self.content = entry.size;
                    self.padding = padding(entry.size);
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// The content of the present entry.
    pub fn content(&mut self) -> impl Read {
        Content(self)
    }

    /// False at the end of the archive.
    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<bool> {
        let mut filled = 0;
        while let Some(rest) = block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.stream.read(rest)? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(TarError::Broken("it ends within a header")),
                read => filled += read,
            }
        }
        Ok(block.iter().any(|byte| *byte != 0))
    }

    fn take(&mut self, size: u64, limit: u64) -> Result<Vec<u8>> {
        if size > limit {
            return Err(TarError::Broken("a name or an extended header in it is longer than any may be"));
        }
        let mut bytes = Vec::new();
        self.stream.by_ref().take(size).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != size {
            return Err(TarError::Broken("it ends within an extended header"));
        }
        self.padding = padding(size);
        Ok(bytes)
    }

    fn pass_over(&mut self) -> Result<()> {
        let left = std::mem::take(&mut self.content).saturating_add(std::mem::take(&mut self.padding));
        let passed = io::copy(&mut self.stream.by_ref().take(left), &mut io::sink())?;
        if passed == left { Ok(()) } else { Err(TarError::Broken("it ends within an entry")) }
    }
}

struct Content<'a, R>(&'a mut Archive<R>);

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let archive = &mut *self.0;
        let read = archive.stream.by_ref().take(archive.content).read(buffer)?;
        if read == 0 && archive.content > 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends within a file"));
        }
        archive.content -= read as u64;
        Ok(read)
    }
}

fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A block of `struct posix_header`.
struct Header<'a>(&'a [u8; BLOCK]);

impl Header<'_> {
    fn field(&self, at: usize, length: usize) -> &[u8] {
        self.0.get(at..at + length).unwrap_or_default()
    }

    fn kind(&self) -> u8 {
        self.field(156, 1).first().copied().unwrap_or_default()
    }

    /// The sum of all bytes, those of the sum itself taken for blanks.
    fn verify(&self) -> Result<()> {
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        let own: u64 = self.field(148, 8).iter().map(|byte| u64::from(*byte)).sum();
        match number(self.field(148, 8)) {
            Some(told) if told as u64 == sum - own + 8 * u64::from(b' ') => Ok(()),
            _ => Err(TarError::Broken("it is no tar archive, or a header in it is damaged")),
        }
    }

    fn size(&self) -> Result<u64> {
        let size = number(self.field(124, 12)).and_then(|size| u64::try_from(size).ok());
        // Above that a position in the archive would not be a number any more.
        size.filter(|size| *size < 1 << 62).ok_or(TarError::Broken("an entry in it has no size"))
    }

    fn path(&self) -> Vec<u8> {
        let (name, prefix) = (until_nul(self.field(0, 100)), until_nul(self.field(345, 155)));
        // GNU's own format has times where ustar has the first part of a long name.
        match self.field(257, 6) == b"ustar\0" && !prefix.is_empty() {
            true => [prefix, b"/", name].concat(),
            false => name.to_vec(),
        }
    }

    fn entry(&self, extended: Extended) -> Result<Entry> {
        let path = extended.path.unwrap_or_else(|| self.path());
        let target = extended.target.unwrap_or_else(|| until_nul(self.field(157, 100)).to_vec());
        if path.len() as u64 > MAX_NAME || target.len() as u64 > MAX_NAME {
            return Err(TarError::Broken("a name in it is longer than 4096 bytes"));
        }
        let kind = match self.kind() {
            // Before there was a type for directories they were known by this.
            0 | b'0' if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::SymbolicLink,
            b'3' => Kind::Character,
            b'4' => Kind::Block,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => return Err(TarError::Type(other.into())),
        };
        let told = |at, length| number(self.field(at, length));
        let id = |extended: Option<u64>, at| {
            let id = extended.or_else(|| told(at, 8).and_then(|id| u64::try_from(id).ok()));
            id.and_then(|id| u32::try_from(id).ok()).ok_or(TarError::Broken("an owner in it is no number"))
        };
        let size = extended.size.map_or_else(|| self.size(), Ok)?;
        Ok(Entry {
            kind,
            path: OsString::from_vec(path),
            target: OsString::from_vec(target),
            mode: told(100, 8).unwrap_or(0) as u32 & 0o7777,
            uid: id(extended.uid, 108)?,
            gid: id(extended.gid, 116)?,
            modified: extended.modified.unwrap_or((told(136, 12).unwrap_or(0), 0)),
            device: (told(329, 8).unwrap_or(0) as u64, told(337, 8).unwrap_or(0) as u64),
            xattrs: extended.xattrs,
            // Of the others some archivers tell a size that nothing follows.
            size: if kind == Kind::File { size } else { 0 },
        })
    }
}

/// Octal digits between blanks, or (GNU) a big-endian number behind a set bit.
fn number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // The second bit is the sign.
        let start = i64::from(first & 0x7f) - if first & 0x40 != 0 { 0x80 } else { 0 };
        return rest.iter().try_fold(start, |sum, byte| sum.checked_mul(256)?.checked_add(i64::from(*byte)));
    }
    let digits = str::from_utf8(until_nul(field)).ok()?.trim();
    if digits.is_empty() {
        return Some(0);
    }
    i64::from_str_radix(digits, 8).ok()
}

impl Extended {
    /// Records of `LENGTH KEY=VALUE\n`, the length that of the whole record.
    fn read(&mut self, mut records: &[u8]) -> Result<()> {
        const BROKEN: TarError = TarError::Broken("an extended header in it is damaged");
        while !records.is_empty() {
            let digits = records.iter().position(|byte| *byte == b' ').ok_or(BROKEN)?;
            let length = records.get(..digits).and_then(|digits| str::from_utf8(digits).ok());
            let length: usize = length.and_then(|length| length.parse().ok()).ok_or(BROKEN)?;
            let record = records.get(digits + 1..length).and_then(|record| record.strip_suffix(b"\n"));
            let record = record.ok_or(BROKEN)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(BROKEN)?;
            let (key, value) = record.split_at(equals);
            let key = str::from_utf8(key).map_err(|_| BROKEN)?;
            self.set(key, value.get(1..).unwrap_or_default()).ok_or(BROKEN)??;
            records = records.get(length..).unwrap_or_default();
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &[u8]) -> Option<Result<()>> {
        let text = || str::from_utf8(value).ok();
        let name = || (!value.contains(&0)).then(|| value.to_vec());
        match key {
            "path" => self.path = Some(name()?),
            "linkpath" => self.target = Some(name()?),
            "size" => self.size = Some(text()?.parse().ok().filter(|size| *size < 1 << 62)?),
            "uid" => self.uid = Some(text()?.parse().ok()?),
            "gid" => self.gid = Some(text()?.parse().ok()?),
            "mtime" => self.modified = Some(time(text()?)?),
            _ if key.starts_with("GNU.sparse.") => {
                return Some(Err(TarError::Broken("it has a sparse file, which no layer has")));
            }
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    self.xattrs.push((name.to_owned(), value.to_vec()));
                }
            }
        }
        Some(Ok(()))
    }
}

/// Seconds with a fraction, before 1970 too.
fn time(text: &str) -> Option<(i64, i64)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = seconds.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: i64 = format!("{:0<9.9}", fraction).parse().ok()?;
    match seconds.starts_with('-') && nanos > 0 {
        true => Some((whole.checked_sub(1)?, 1_000_000_000 - nanos)),
        false => Some((whole, nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Entry>> {
        let mut archive = Archive::new(bytes);
        std::iter::from_fn(|| archive.next_entry().transpose()).collect()
    }

    fn header(kind: u8, name: &str, size: usize) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[156] = kind;
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }

    fn with(kind: u8, name: &str, content: &[u8]) -> Vec<u8> {
        let mut bytes = header(kind, name, content.len());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes
    }

    #[test]
    fn numbers_and_times() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"  644 \0\0"), Some(0o644));
        assert_eq!(number(b"\0\0"), Some(0));
        assert_eq!(number(&[0x80, 0, 1, 0]), Some(256));
        assert_eq!(number(&[0xff, 0xff, 0xff, 0xfe]), Some(-2));
        assert_eq!(number(b"9"), None);
        assert_eq!(number(&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(time("1.5"), Some((1, 500_000_000)));
        assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time("7"), Some((7, 0)));
        assert_eq!(time("1.0000000019"), Some((1, 1)));
        assert_eq!(time("1.x"), None);
    }

    #[test]
    fn extended_headers_count_for_the_next_entry_only() {
        let long = "d/".repeat(200);
        let path = format!("{} path={long}\n", long.len() + 10);
        // A value may have a newline in it; a length may not be another than the record's.
        let attribute = |length| format!("{length} SCHILY.xattr.user.a=1\n2\n");
        let mut valid = with(b'x', "x", attribute(27).as_bytes());
        valid.extend(with(b'0', "a", b""));
        assert_eq!(read(&valid).unwrap()[0].xattrs, [("user.a".to_owned(), b"1\n2".to_vec())]);
        assert!(read(&with(b'x', "x", attribute(26).as_bytes())).is_err());
        let mut bytes = with(b'x', "x", path.as_bytes());
        bytes.extend(with(b'5', "short", b""));
        bytes.extend(with(b'L', "", b"of GNU\0"));
        bytes.extend(with(b'0', "a", b"text"));
        bytes.extend(with(b'0', "b", b""));
        bytes.extend([0; 2 * BLOCK]);
        let entries = read(&bytes).unwrap();
        let paths: Vec<_> = entries.iter().map(|entry| entry.path.to_str().unwrap()).collect();
        assert_eq!(paths, [long.as_str(), "of GNU", "b"]);
    }

    #[test]
    fn what_is_declared_is_not_allocated() {
        for kind in [b'x', b'g', b'L', b'K'] {
            assert!(matches!(read(&header(kind, "x", 1 << 30)), Err(TarError::Broken(_))), "{kind}");
        }
        assert!(matches!(read(&header(b'0', "x", 1 << 30)), Err(TarError::Broken(_))));
    }

    #[test]
    fn damage_is_found() {
        let good = with(b'0', "a", b"text");
        for at in [0, 100, 130, 156, 300] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(read(&bad).is_err(), "{at}");
        }
        assert!(read(&good[..700]).is_err());
        assert!(read(&good[..100]).is_err());
        assert!(matches!(read(&with(b'S', "a", b"")), Err(TarError::Type('S'))));
        assert!(read(&with(b'x', "x", b"22 GNU.sparse.major=1\n")).is_err());
        assert_eq!(read(b"").unwrap(), []);
    }
}
