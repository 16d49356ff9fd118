//! The partition table (GPT) of a disk whose partitions are layers.
//!
//! The table is read here and not by the kernel, which has to be built for it and tells nobody why it found
//! nothing. It comes from the host and is believed in nothing: what it says is bounded before it is used, and
//! checksums are looked at before anything else is. The backup at the disk's end counts only where the primary
//! is broken; hosts that put a disk together from image files write none. Of a table with one partition outside
//! the disk, or over another, no partition is used.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
};

const SIGNATURE: &[u8] = b"EFI PART";
/// The first block of the primary table; block 0 belongs to older systems.
const PRIMARY: u64 = 1;
/// All of a header that means anything.
const HEADER: std::ops::RangeInclusive<u32> = 92..=512;
const CHECKSUM: std::ops::Range<usize> = 16..20;
const ENTRY_SIZES: std::ops::RangeInclusive<u32> = 128..=4096;
/// Eight times what tables have.
const MAX_ENTRIES: u32 = 1024;

/// A part of a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Where it begins.
    pub start: u64,
    /// How long it is.
    pub length: u64,
}

/// Why a partition cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GptError {
    /// No table, or a damaged one.
    #[error("has no partition table: its primary {primary}, and its backup {backup}")]
    NoTable {
        /// What is wrong at the disk's beginning.
        primary: Broken,
        /// And at its end.
        backup: Broken,
    },
    /// The table has no such partition.
    #[error("has no partition {number}; there are {present:?}")]
    Missing {
        /// As asked for.
        number: u32,
        /// Those there are.
        present: Vec<u32>,
    },
    /// A partition is where none may be.
    #[error("has a partition {number} in blocks {first} to {last}, outside of {} to {}", usable.0, usable.1)]
    Outside {
        /// Which.
        number: u32,
        /// Its first block.
        first: u64,
        /// Its last.
        last: u64,
        /// What the header and the disk's length leave for partitions.
        usable: (u64, u64),
    },
    /// Two share blocks.
    #[error("has partitions {one} and {other} over each other")]
    Overlap {
        /// The one that begins first.
        one: u32,
        /// The other.
        other: u32,
    },
}

/// What is wrong with one of the two copies of a table, as the end of a sentence.
#[derive(Debug)]
pub enum Broken {
    /// It cannot be read.
    Unread(io::Error),
    /// Something else is there.
    Signature,
    /// Its header or its entries are not what was written.
    Checksum(&'static str),
    /// A number in its header is out of bounds.
    Number(&'static str, u64),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread(error) => write!(f, "cannot be read ({error})"),
            Self::Signature => f.write_str("is not there"),
            Self::Checksum(what) => write!(f, "has a wrong checksum of its {what}"),
            Self::Number(what, number) => write!(f, "has the {what} {number}, which is out of bounds"),
        }
    }
}

/// One entry in use.
#[derive(Debug, Clone, Copy)]
struct Entry {
    number: u32,
    first: u64,
    last: u64,
}

/// A table whose checksums are right.
struct Table {
    usable: (u64, u64),
    entries: Vec<Entry>,
}

/// Finds partition `number`, counted from 1, of a disk with blocks of `block` bytes.
pub fn find(disk: &mut (impl Read + Seek), block: u64, number: u32) -> Result<Partition, GptError> {
    let blocks = disk.seek(SeekFrom::End(0)).map_or(0, |length| length / block.max(1));
    let table = match table(disk, block, PRIMARY, blocks) {
        Ok(table) => table,
        Err(primary) => table(disk, block, blocks.saturating_sub(1), blocks)
            .map_err(|backup| GptError::NoTable { primary, backup })?,
    };
    table.check()?;
    let Some(entry) = table.entries.iter().find(|entry| entry.number == number) else {
        let present = table.entries.iter().map(|entry| entry.number).collect();
        return Err(GptError::Missing { number, present });
    };
    // Within the disk, whose length in bytes is a u64.
    let length = (entry.last - entry.first).saturating_add(1).saturating_mul(block);
    Ok(Partition { start: entry.first.saturating_mul(block), length })
}

impl Table {
    fn check(&self) -> Result<(), GptError> {
        let mut sorted = self.entries.clone();
        sorted.sort_unstable_by_key(|entry| entry.first);
        let mut previous: Option<Entry> = None;
        for entry in sorted {
            let Entry { number, first, last } = entry;
            if first > last || first < self.usable.0 || last > self.usable.1 {
                return Err(GptError::Outside { number, first, last, usable: self.usable });
            }
            if let Some(previous) = previous.filter(|previous| previous.last >= first) {
                return Err(GptError::Overlap { one: previous.number, other: number });
            }
            previous = Some(entry);
        }
        Ok(())
    }
}

/// The copy of the table whose header is in block `place`.
fn table(disk: &mut (impl Read + Seek), block: u64, place: u64, blocks: u64) -> Result<Table, Broken> {
    let mut header = [0; 512];
    seek(disk, block, place)?;
    disk.read_exact(&mut header).map_err(Broken::Unread)?;
    if !header.starts_with(SIGNATURE) {
        return Err(Broken::Signature);
    }
    let size = u32_at(&header, 12);
    let wanted = u32_at(&header, CHECKSUM.start);
    if let Some(field) = header.get_mut(CHECKSUM) {
        field.fill(0);
    }
    let covered = header.get(..size as usize).filter(|_| HEADER.contains(&size));
    let covered = covered.ok_or(Broken::Number("header size", size.into()))?;
    if !checksum(!0, covered) != wanted {
        return Err(Broken::Checksum("header"));
    }
    let own = u64_at(&header, 24);
    if own != place {
        return Err(Broken::Number("own block", own));
    }
    let (at, count, size) = (u64_at(&header, 72), u32_at(&header, 80), u32_at(&header, 84));
    if !ENTRY_SIZES.contains(&size) || !size.is_power_of_two() {
        return Err(Broken::Number("entry size", size.into()));
    }
    if count > MAX_ENTRIES {
        return Err(Broken::Number("number of entries", count.into()));
    }
    if at >= blocks {
        return Err(Broken::Number("entries' block", at));
    }
    seek(disk, block, at)?;
    let entries = entries(&mut BufReader::new(disk), count, size, u32_at(&header, 88))?;
    let usable = (u64_at(&header, 40).max(PRIMARY + 1), u64_at(&header, 48).min(blocks.saturating_sub(1)));
    Ok(Table { usable, entries })
}

fn seek(disk: &mut impl Seek, block: u64, place: u64) -> Result<(), Broken> {
    let position = place.checked_mul(block).ok_or(Broken::Number("block", place))?;
    disk.seek(SeekFrom::Start(position)).map(drop).map_err(Broken::Unread)
}

fn entries(disk: &mut impl BufRead, count: u32, size: u32, wanted: u32) -> Result<Vec<Entry>, Broken> {
    let (mut found, mut sum) = (Vec::new(), !0);
    let mut buffer = [0; *ENTRY_SIZES.end() as usize];
    for number in 1..=count {
        let entry = buffer.get_mut(..size as usize).unwrap_or_default();
        disk.read_exact(entry).map_err(Broken::Unread)?;
        sum = checksum(sum, entry);
        // No type: not in use.
        if entry.iter().take(16).any(|byte| *byte != 0) {
            found.push(Entry { number, first: u64_at(entry, 32), last: u64_at(entry, 40) });
        }
    }
    if !sum == wanted { Ok(found) } else { Err(Broken::Checksum("entries")) }
}

/// CRC-32 as zlib has it, continued; begun with all ones and inverted at the end.
fn checksum(sum: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(sum, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    const BLOCKS: u64 = 200;

    /// A disk with both copies of a table of 128 entries, those given in use; `change` sees each copy's header
    /// before its checksum is made.
    fn disk(block: usize, extents: &[(u64, u64)], change: impl Fn(&mut [u8])) -> Cursor<Vec<u8>> {
        let mut disk = vec![0; block * BLOCKS as usize];
        let mut entries = vec![0; 128 * 128];
        for (index, (first, last)) in extents.iter().enumerate().filter(|(_, extent)| **extent != (0, 0)) {
            let entry = &mut entries[index * 128..];
            entry[..16].fill(7);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
        }
        for (own, at) in [(1, 2), (BLOCKS - 1, BLOCKS - 33)] {
            let mut header = [0; 92];
            header[..8].copy_from_slice(SIGNATURE);
            let numbers: [(usize, &[u8]); 8] = [
                (8, &0x10000_u32.to_le_bytes()),
                (12, &92_u32.to_le_bytes()),
                (24, &own.to_le_bytes()),
                (40, &34_u64.to_le_bytes()),
                (48, &(BLOCKS - 34).to_le_bytes()),
                (72, &at.to_le_bytes()),
                (80, &128_u32.to_le_bytes()),
                (84, &128_u32.to_le_bytes()),
            ];
            for (place, bytes) in numbers {
                header[place..place + bytes.len()].copy_from_slice(bytes);
            }
            header[88..92].copy_from_slice(&(!checksum(!0, &entries)).to_le_bytes());
            change(&mut header);
            header[CHECKSUM].fill(0);
            let sum = !checksum(!0, &header);
            header[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
            disk[own as usize * block..][..92].copy_from_slice(&header);
            disk[at as usize * block..][..entries.len()].copy_from_slice(&entries);
        }
        Cursor::new(disk)
    }

    const TWO: [(u64, u64); 3] = [(40, 49), (0, 0), (50, 59)];

    fn found(disk: &mut Cursor<Vec<u8>>, number: u32) -> Result<Partition, String> {
        find(disk, 512, number).map_err(|error| error.to_string())
    }

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(!checksum(!0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn partitions_are_found_by_number() {
        let mut small = disk(512, &TWO, |_| ());
        assert_eq!(found(&mut small, 1).unwrap(), Partition { start: 40 * 512, length: 10 * 512 });
        assert_eq!(found(&mut small, 3).unwrap(), Partition { start: 50 * 512, length: 10 * 512 });
        for number in [0, 2, 4, 128, 129, u32::MAX] {
            assert!(found(&mut small, number).unwrap_err().contains("there are [1, 3]"), "{number}");
        }
        let mut large = disk(4096, &TWO, |_| ());
        assert_eq!(find(&mut large, 4096, 1).unwrap(), Partition { start: 40 * 4096, length: 10 * 4096 });
        assert!(find(&mut large, 512, 1).is_err(), "of another block size it is no table");
    }

    #[test]
    fn the_backup_counts_where_the_primary_is_broken_and_only_there() {
        let broken: [usize; 4] = [512, 512 + 17, 512 + 60, 1024 + 40];
        for byte in broken {
            let mut disk = disk(512, &TWO, |_| ());
            disk.get_mut()[byte] ^= 1;
            assert_eq!(found(&mut disk, 1).unwrap().start, 40 * 512, "byte {byte}");
            let backup = (BLOCKS as usize - 1) * 512;
            disk.get_mut()[backup + 60] ^= 1;
            let error = found(&mut disk, 1).unwrap_err();
            assert!(error.contains("backup has a wrong checksum of its header"), "{error}");
        }
        let mut disk = disk(512, &TWO, |_| ());
        disk.get_mut()[(BLOCKS as usize - 40) * 512..].fill(0xff);
        assert_eq!(found(&mut disk, 1).unwrap().start, 40 * 512);
    }

    #[test]
    fn what_is_cut_off_is_no_table() {
        let whole = disk(512, &TWO, |_| ()).into_inner();
        for length in [0, 1, 511, 512, 1023, 1024, 1025, 1024 + 128 * 128 - 1] {
            assert!(found(&mut Cursor::new(whole[..length].to_vec()), 1).is_err(), "{length} bytes");
        }
        let error = found(&mut Cursor::new(vec![0; 4096]), 1).unwrap_err();
        assert_eq!(error, "has no partition table: its primary is not there, and its backup is not there");
        assert!(find(&mut Cursor::new(whole), 0, 1).is_err());
    }

    #[test]
    fn declared_numbers_are_bounded_whatever_the_checksum_says() {
        let numbers: [(usize, u32, &str); 6] = [
            (80, u32::MAX, "number of entries 4294967295"),
            (84, 0, "entry size 0"),
            (84, 136, "entry size 136"),
            (84, 1 << 31, "entry size 2147483648"),
            (76, u32::MAX, "entries' block"),
            (24, 9, "own block"),
        ];
        for (place, number, what) in numbers {
            let change = |header: &mut [u8]| header[place..place + 4].copy_from_slice(&number.to_le_bytes());
            let error = found(&mut disk(512, &TWO, change), 1).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let mut disk = disk(512, &TWO, |_| ());
        for header in [512, (BLOCKS as usize - 1) * 512] {
            disk.get_mut()[header + 12..header + 16].copy_from_slice(&u32::MAX.to_le_bytes());
        }
        assert!(found(&mut disk, 1).unwrap_err().contains("header size 4294967295"));
    }

    #[test]
    fn one_partition_out_of_place_spoils_them_all() {
        let outside = [(40, 39), (33, 40), (40, BLOCKS), (1, 1), (0, u64::MAX), (u64::MAX, u64::MAX)];
        for extent in outside {
            let error = found(&mut disk(512, &[(60, 61), extent], |_| ()), 1).unwrap_err();
            assert!(error.contains("has a partition 2 in blocks"), "{error}");
        }
        for (one, other) in [((40, 49), (49, 60)), ((40, 60), (45, 50)), ((40, 40), (40, 40))] {
            let error = found(&mut disk(512, &[one, other], |_| ()), 1).unwrap_err();
            assert!(error.contains("over each other"), "{error}");
        }
        let far = |header: &mut [u8]| header[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(found(&mut disk(512, &[(40, BLOCKS)], far), 1).is_err(), "the disk ends before");
    }
}
