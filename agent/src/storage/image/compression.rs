//! How a layer's archive is packed: not at all, with gzip, or with zstd.
//!
//! Both formats allow several streams one after the other, and tools that compress in parallel make use of it.
//! A zstd frame says how much of its past it refers to, and a decoder has to keep as much; one that wants more than
//! compression at usual levels needs is refused before anything is allocated for it.

use std::{
    fmt,
    io::{self, BufRead, Read},
};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Twice what zstd -19 wants.
const MAX_WINDOW: u64 = 16 << 20;
const MAGIC: u32 = 0xfd2f_b528;
/// Frames that are no data: the last four bits are free.
const SKIPPABLE: u32 = 0x184d_2a50;

/// A layer's compression, by its media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// The archive as it is.
    None,
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

const MEDIA_TYPES: [(&str, Compression); 8] = [
    ("application/vnd.oci.image.layer.v1.tar", Compression::None),
    ("application/vnd.oci.image.layer.v1.tar+gzip", Compression::Gzip),
    ("application/vnd.oci.image.layer.v1.tar+zstd", Compression::Zstd),
    ("application/vnd.oci.image.layer.nondistributable.v1.tar", Compression::None),
    ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", Compression::Gzip),
    ("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", Compression::Zstd),
    ("application/vnd.docker.image.rootfs.diff.tar", Compression::None),
    ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression::Gzip),
];

impl Compression {
    /// `None` is a media type that no layer of tar has.
    pub(super) fn of(media_type: &str) -> Option<Self> {
        MEDIA_TYPES.iter().find(|(known, _)| *known == media_type).map(|(_, compression)| *compression)
    }
}

/// The archive within `packed`.
pub struct Unpacked<R: BufRead>(Decoder<R>);

enum Decoder<R: BufRead> {
    None(R),
    Gzip(Box<MultiGzDecoder<R>>),
    Zstd(Box<Frames<R>>),
}

impl<R: BufRead> Unpacked<R> {
    /// Of `packed`, as `compression` has it.
    pub fn new(packed: R, compression: Compression) -> Self {
        Self(match compression {
            Compression::None => Decoder::None(packed),
            Compression::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(packed))),
            Compression::Zstd => {
                Decoder::Zstd(Box::new(Frames { packed, decoder: FrameDecoder::new(), within: false }))
            }
        })
    }

    /// What is below.
    pub(super) fn into_packed(self) -> R {
        match self.0 {
            Decoder::None(packed) => packed,
            Decoder::Gzip(decoder) => decoder.into_inner(),
            Decoder::Zstd(frames) => frames.packed,
        }
    }
}

impl<R: BufRead> fmt::Debug for Unpacked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacked").finish_non_exhaustive()
    }
}

impl<R: BufRead> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Decoder::None(packed) => packed.read(buffer),
            Decoder::Gzip(decoder) => decoder.read(buffer),
            Decoder::Zstd(frames) => frames.read(buffer),
        }
    }
}

/// Frames of zstd, one after the other.
struct Frames<R> {
    packed: R,
    decoder: FrameDecoder,
    /// A frame has begun, and has not been read to its end.
    within: bool,
}

fn broken(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

impl<R: BufRead> Frames<R> {
    /// False where there is no further one.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.packed.fill_buf()?.is_empty() {
                return Ok(false);
            }
            let magic = self.take::<4>()?;
            match u32::from_le_bytes(magic) {
                MAGIC => break,
                skippable if skippable & !0xf == SKIPPABLE => {
                    let length = u32::from_le_bytes(self.take()?);
                    io::copy(&mut self.packed.by_ref().take(length.into()), &mut io::sink())?;
                }
                _ => return Err(broken("a layer that is said to be of zstd is not")),
            }
        }
        let header = self.header()?;
        let magic = MAGIC.to_le_bytes();
        let mut whole = magic.as_slice().chain(header.as_slice()).chain(&mut self.packed);
        self.decoder.init(&mut whole).map_err(io::Error::other)?;
        Ok(true)
    }

    /// The frame's header after its first four bytes, if a decoder for it is not too large. RFC 8878, 3.1.1.1: a
    /// byte says which of the other fields there are.
    fn header(&mut self) -> io::Result<Vec<u8>> {
        let [descriptor] = self.take()?;
        let single = descriptor & 0x20 != 0;
        let dictionary = [0, 1, 2, 4].get(usize::from(descriptor & 3)).copied().unwrap_or_default();
        let size = match (descriptor >> 6, single) {
            (0, false) => 0,
            (power, _) => 1 << power,
        };
        let before = usize::from(!single);
        let mut fields = vec![0; before + dictionary + size];
        self.packed.read_exact(&mut fields)?;
        let window = match fields.first() {
            Some(byte) if !single => {
                let base = 1_u64 << (10 + (byte >> 3));
                base + base / 8 * u64::from(byte & 7)
            }
            _ => {
                let size = fields.get(dictionary..).unwrap_or_default();
                size.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
            }
        };
        if window > MAX_WINDOW {
            let problem =
                "a layer of zstd refers back over more than 16 MiB: compress it without --ultra and --long";
            return Err(broken(problem));
        }
        fields.insert(0, descriptor);
        Ok(fields)
    }

    fn take<const LENGTH: usize>(&mut self) -> io::Result<[u8; LENGTH]> {
        let mut bytes = [0; LENGTH];
        self.packed.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.within && self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.within && !self.decoder.is_finished() {
                let some = BlockDecodingStrategy::UptoBytes(buffer.len());
                self.decoder.decode_blocks(&mut self.packed, some).map_err(io::Error::other)?;
                continue;
            }
            self.within = self.begin()?;
            if !self.within {
                return Ok(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn packed(program: &str, arguments: &[&str], text: &[u8]) -> Vec<u8> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("run {program} (make setup installs it): {error}"));
        let mut input = child.stdin.take().unwrap();
        let text = text.to_vec();
        let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, &text));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        output.stdout
    }

    fn unpacked(bytes: &[u8], compression: Compression) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        Unpacked::new(bytes, compression).read_to_end(&mut text)?;
        Ok(text)
    }

    /// Text that compresses somewhat.
    fn text() -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
            (state >> 24) as u8 & 0x3f
        };
        (0..600_000).map(|_| next()).chain(std::iter::repeat_n(b'x', 600_000)).collect()
    }

    #[test]
    fn streams_one_after_the_other() {
        let text = text();
        for (program, arguments, compression) in [
            ("gzip", &["-c"][..], Compression::Gzip),
            ("zstd", &["-qc"][..], Compression::Zstd),
            ("zstd", &["-qc", "-19", "--no-check"][..], Compression::Zstd),
        ] {
            let mut two = packed(program, arguments, &text);
            if compression == Compression::Zstd {
                two.extend([0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
            }
            two.extend(packed(program, arguments, b"end"));
            let all = unpacked(&two, compression).unwrap();
            assert!(all == [text.as_slice(), b"end"].concat(), "{program} {arguments:?}");
            two.truncate(two.len() - 9);
            assert!(unpacked(&two, compression).is_err(), "{program} {arguments:?}, cut");
        }
    }

    #[test]
    fn a_window_larger_than_any_layer_needs_is_refused() {
        let mut frame = MAGIC.to_le_bytes().to_vec();
        frame.extend([0, 15 << 3, 0, 0, 0]);
        assert!(unpacked(&frame, Compression::Zstd).unwrap_err().to_string().contains("16 MiB"));
        assert!(unpacked(b"none at all", Compression::Zstd).is_err());
        assert!(unpacked(b"none at all", Compression::Gzip).is_err());
    }

    #[test]
    fn media_types() {
        for (media_type, expected) in [
            ("application/vnd.oci.image.layer.v1.tar", Some(Compression::None)),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Some(Compression::Gzip)),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Some(Compression::Zstd)),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", Some(Compression::Gzip)),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Some(Compression::Gzip)),
            ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", None),
            ("application/vnd.oci.image.config.v1+json", None),
            ("", None),
        ] {
            assert_eq!(Compression::of(media_type), expected, "{media_type}");
        }
    }
}
