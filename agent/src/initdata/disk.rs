//! The disk: a block device that begins with "initdata", then the length of what follows, which is gzip.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use flate2::bufread::GzDecoder;

use super::{InitdataError, Result, failed_to};

const MAGIC: &[u8; 8] = b"initdata";
/// virtio-blk and SCSI.
const NAMES: [&str; 2] = ["vd", "sd"];

/// The disk in `dev` that has initdata, if there is one.
pub(super) fn find(dev: &Path) -> Result<Option<PathBuf>> {
    let mut found = None;
    for entry in fs::read_dir(dev).map_err(failed_to("read", dev))? {
        let entry = entry.map_err(failed_to("read", dev))?;
        let is_disk =
            NAMES.iter().any(|name| entry.file_name().as_encoded_bytes().starts_with(name.as_bytes()))
                && entry.file_type().is_ok_and(|kind| kind.is_block_device());
        // A disk that cannot be read is somebody else's trouble: an empty drive, for one.
        if is_disk
            && matches!(begin(&entry.path()), Ok((_, true)))
            && let Some(first) = found.replace(entry.path())
        {
            return Err(InitdataError::Twice { first, second: entry.path() });
        }
    }
    Ok(found)
}

/// An open disk, and whether it begins as it should.
fn begin(path: &Path) -> io::Result<(File, bool)> {
    let (mut file, mut magic) = (File::open(path)?, [0; 8]);
    file.read_exact(&mut magic)?;
    Ok((file, magic == *MAGIC))
}

/// What the disk says it holds, which is `most` bytes at most, packed.
pub(super) fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let cannot = || failed_to("read", path);
    let (mut file, _) = begin(path).map_err(cannot())?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(cannot())?;
    let length = u64::from_le_bytes(length);
    if length > most {
        return Err(InitdataError::Long { path: path.to_owned(), length, most });
    }
    let mut packed = Vec::new();
    let read = file.take(length).read_to_end(&mut packed).map_err(cannot())?;
    match u64::try_from(read) == Ok(length) {
        true => Ok(packed),
        false => Err(cannot()(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Unpacks one gzip member that is all of `packed`, to `most` bytes at most; `None` if it is larger.
pub(super) fn unpack(packed: &[u8], most: usize) -> io::Result<Option<Vec<u8>>> {
    let (mut decoder, mut bytes) = (GzDecoder::new(packed), Vec::new());
    // One byte more than may be: less than that is all of it, and its checksum was looked at.
    let length = (&mut decoder).take(most as u64 + 1).read_to_end(&mut bytes)?;
    if length > most {
        return Ok(None);
    }
    match decoder.into_inner() {
        [] => Ok(Some(bytes)),
        _ => Err(io::Error::other("there is something behind its end")),
    }
}
