//! Blobs: named by the digest of their bytes, which are believed only once all of them have been counted.
//!
//! A blob is opened beneath its layout without following any link, read once and in pieces, and compared with its
//! name at the end. So what is made from it meanwhile is thrown away if [`Hashing::finish`] says so.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Instant,
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    libc,
    sys::stat::fstat,
};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{ImageError, Result, error::failed_to};

/// Manifests and configurations; registries take no larger ones.
const MAX_DOCUMENT: u64 = 4 << 20;

/// `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Digest([u8; 32]);

impl Digest {
    /// Of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Without the algorithm: the name of a file.
    pub(super) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let refused = || format!("the digest {text:?} is not sha256: and 64 hexadecimal digits");
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64).ok_or_else(refused)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair =
                str::from_utf8(pair).ok().filter(|pair| !pair.contains(['+', 'A', 'B', 'C', 'D', 'E', 'F']));
            *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or_else(refused)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A directory with blobs, and until when they may be read.
#[derive(Debug)]
pub(super) struct Blobs {
    root: OwnedFd,
    path: PathBuf,
    until: Instant,
}

impl Blobs {
    pub(super) fn new(root: OwnedFd, path: &Path, until: Instant) -> Self {
        Self { root, path: path.to_owned(), until }
    }

    /// Where they are.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A whole file of the layout that is not a blob.
    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>> {
        let (file, size) = self.file(Path::new(name))?;
        self.read_all(file, size, &self.path.join(name).display().to_string())
    }

    /// A whole small blob.
    pub(super) fn whole(&self, digest: Digest, size: u64) -> Result<Vec<u8>> {
        let (file, found) = self.file(&place(digest))?;
        check_size(digest, size, found)?;
        let bytes = self.read_all(file, size, &digest.to_string())?;
        match Digest::of(&bytes) {
            actual if actual == digest => Ok(bytes),
            actual => Err(ImageError::Digest { wanted: digest.to_string(), actual: actual.to_string() }),
        }
    }

    /// A blob to be read in pieces.
    pub(super) fn stream(&self, digest: Digest, size: u64) -> Result<Hashing<io::Take<File>>> {
        let (file, found) = self.file(&place(digest))?;
        check_size(digest, size, found)?;
        Ok(Hashing::new(file.take(size), self.until))
    }

    fn read_all(&self, file: File, size: u64, what: &str) -> Result<Vec<u8>> {
        if size > MAX_DOCUMENT {
            let problem = format!("{what} is of {size} bytes; such documents have at most {MAX_DOCUMENT}");
            return Err(ImageError::Layout { path: self.path.clone(), problem });
        }
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes).map_err(failed_to(|| format!("read {what}")))?;
        Ok(bytes)
    }

    /// A regular file and its length; a pipe would be waited for.
    fn file(&self, path: &Path) -> Result<(File, u64)> {
        let failed = || format!("open {}", self.path.join(path).display());
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        let fd = openat2(&self.root, path, how).map_err(failed_to(failed))?;
        let found = fstat(&fd).map_err(failed_to(failed))?;
        if found.st_mode & libc::S_IFMT != libc::S_IFREG {
            let problem = format!("{} is no regular file", path.display());
            return Err(ImageError::Layout { path: self.path.clone(), problem });
        }
        Ok((File::from(fd), found.st_size.cast_unsigned()))
    }
}

fn place(digest: Digest) -> PathBuf {
    Path::new("blobs/sha256").join(digest.hex())
}

fn check_size(digest: Digest, wanted: u64, actual: u64) -> Result<()> {
    if wanted == actual {
        return Ok(());
    }
    Err(ImageError::Size { digest: digest.to_string(), wanted, actual })
}

/// A stream, and the digest of what was read of it.
pub(super) struct Hashing<R> {
    stream: R,
    hash: Sha256,
    until: Instant,
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(stream: R, until: Instant) -> Self {
        Self { stream, hash: Sha256::new(), until }
    }

    /// Reads what is left and compares all of it with `digest`.
    pub(super) fn finish(mut self, digest: Digest) -> Result<R> {
        io::copy(&mut self, &mut io::sink()).map_err(failed_to(|| format!("read {digest} to its end")))?;
        match Digest(self.hash.finalize().into()) {
            actual if actual == digest => Ok(self.stream),
            actual => Err(ImageError::Digest { wanted: digest.to_string(), actual: actual.to_string() }),
        }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if Instant::now() > self.until {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        let read = self.stream.read(buffer)?;
        self.hash.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests() {
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), text);
        assert_eq!(Digest::try_from(text.to_owned()).unwrap(), Digest::of(b""));
        for text in
            ["", "sha256:", "sha512:00", &text.replace('e', "E"), &text.replace("b8", "+8"), &text[..70]]
        {
            assert!(Digest::try_from(text.to_owned()).is_err(), "{text}");
        }
        let until = Instant::now() + std::time::Duration::from_secs(60);
        assert!(Hashing::new(&b""[..], until).finish(Digest::of(b"")).is_ok());
        assert!(matches!(
            Hashing::new(&b"x"[..], until).finish(Digest::of(b"")),
            Err(ImageError::Digest { .. })
        ));
        let late = Hashing::new(&b"x"[..], Instant::now() - std::time::Duration::from_millis(1));
        assert!(late.finish(Digest::of(b"x")).is_err());
    }
}
