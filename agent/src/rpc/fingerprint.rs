//! 64 bits that stand for a request's bytes.
//!
//! A piece of a file is a mebibyte, and the standard library's keyed hash took longer over it than everything else
//! that happens to it, writing it included. This one takes sixteen bytes with each multiplication: the two halves of
//! a 128-bit product depend on all bits of both factors. The keys are random and never leave the process, so that
//! nobody can choose two requests that look the same.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// Bytes taken at a time.
const BLOCK: usize = 16;

/// What makes two requests the same. The bytes are kept as a keyed 64-bit hash and a length: among 16,384
/// pending calls two different requests collide once in 10^11 times, and keeping them would double the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) method: &'static str,
    pub(super) length: usize,
    pub(super) hash: u64,
}

/// The keys.
#[derive(Debug)]
pub(super) struct Fingerprint {
    start: u64,
    key: u64,
}

impl Default for Fingerprint {
    fn default() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        Self { start: random(), key: random() }
    }
}

impl Fingerprint {
    /// What the request of `method` with these bytes is known by.
    pub(super) fn key(&self, method: &'static str, bytes: &[u8]) -> Key {
        Key { method, length: bytes.len(), hash: self.of(bytes) }
    }

    /// Of all the bytes, and of how many there are.
    fn of(&self, bytes: &[u8]) -> u64 {
        let (blocks, rest) = bytes.as_chunks::<BLOCK>();
        let mut last = [0; BLOCK];
        last.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
        let state = blocks.iter().chain([&last]).fold(self.start, |state, block| self.mix(state, block));
        fold(state ^ bytes.len() as u64, self.key)
    }

    fn mix(&self, state: u64, block: &[u8; BLOCK]) -> u64 {
        let block = u128::from_le_bytes(*block);
        fold(block as u64 ^ self.key, (block >> 64) as u64 ^ state)
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a).wrapping_mul(u128::from(b));
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn one_bit_or_one_byte_makes_another() {
        let fingerprint = Fingerprint::default();
        let bytes: Vec<u8> = (0..100u8).map(|n| n.wrapping_mul(7)).collect();
        let mut seen = HashSet::new();
        for length in 0..=bytes.len() {
            assert!(seen.insert(fingerprint.of(&bytes[..length])), "the first {length} bytes");
            assert!(seen.insert(fingerprint.of(&[&[0xff], &vec![0; length][..]].concat())), "{length} zeros");
        }
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(fingerprint.of(&other)), "bit {bit}");
        }
        assert!(seen.contains(&fingerprint.of(&bytes)), "the same bytes have the same");
    }

    #[test]
    fn each_process_has_its_own() {
        assert_ne!(Fingerprint::default().of(b"x"), Fingerprint::default().of(b"x"));
    }
}
