//! Any bytes as a layer of an image, packed or not: read to its end or refused, and nothing in it is larger than what
//! it was read from.
#![no_main]

use std::io::{self, Read};

use berth_agent::storage::image::{
    compression::{Compression, Unpacked},
    tar::{Archive, Kind},
};
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 512;
const SUM: std::ops::Range<usize> = 148..156;

/// Of what is unpacked: a few bytes can be gigabytes.
const MOST: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((packing, rest)) = data.split_first() else { return };
    let compression = match packing % 4 {
        0 => Compression::Gzip,
        1 => Compression::Zstd,
        _ => Compression::None,
    };
    let mut bytes = rest.to_vec();
    if compression == Compression::None {
        // Past the checksums, which no mutation would meet by chance.
        bytes.chunks_exact_mut(BLOCK).for_each(seal);
    }
    let mut unpacked = Vec::new();
    // What came before an error was passed on as well.
    let _ = Unpacked::new(bytes.as_slice(), compression).take(MOST).read_to_end(&mut unpacked);
    read(&unpacked);
});

fn seal(block: &mut [u8]) {
    block[SUM].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[SUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn read(bytes: &[u8]) {
    let mut archive = Archive::new(bytes);
    let mut left = bytes.len() as u64;
    while let Ok(Some(entry)) = archive.next_entry() {
        let Ok(content) = io::copy(&mut archive.content(), &mut io::sink()) else { return };
        assert!(content == 0 || entry.kind == Kind::File);
        let attributes: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        let names = entry.path.len().max(entry.target.len());
        assert!(names <= 4096 && attributes <= bytes.len());
        left = left.checked_sub(content + BLOCK as u64).expect("an entry takes a block and its content");
    }
}
