//! Any bytes as a disk with a partition table whose checksums are right: what is found is within the disk.
#![no_main]

use std::io::Cursor;

use berth_agent::storage::gpt;
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 512;
const HEADER: std::ops::Range<usize> = 0..92;

fuzz_target!(|data: &[u8]| {
    let mut disk = data.to_vec();
    let last = (disk.len() / BLOCK).saturating_sub(1);
    for block in [last, 1] {
        // Past the checksums, which no mutation would meet by chance.
        let _too_short = seal(&mut disk, block);
    }
    let length = disk.len() as u64;
    for number in [0, 1, 2, 128] {
        if let Ok(found) = gpt::find(&mut Cursor::new(&disk), BLOCK as u64, number) {
            assert!(
                found.length > 0 && found.start.checked_add(found.length).is_some_and(|end| end <= length)
            );
        }
    }
});

fn seal(disk: &mut [u8], block: usize) -> Option<()> {
    let number = |at: usize| {
        let bytes = disk.get(block * BLOCK + at..)?.get(..4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let length = number(80)?.checked_mul(number(84)?)?;
    let entries = disk.get(number(72)?.checked_mul(BLOCK)?..)?.get(..length).map(crc32fast::hash);
    let header = disk.get_mut(block * BLOCK..)?.get_mut(HEADER)?;
    header[..8].copy_from_slice(b"EFI PART");
    header[12..20].copy_from_slice(&[92, 0, 0, 0, 0, 0, 0, 0]);
    header[24..32].copy_from_slice(&(block as u64).to_le_bytes());
    if let Some(entries) = entries {
        header[88..92].copy_from_slice(&entries.to_le_bytes());
    }
    let sum = crc32fast::hash(header);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    Some(())
}
