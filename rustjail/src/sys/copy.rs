//! memcpy(3) and memmove(3) in place of musl's on x86_64.
//!
//! musl's are one `rep movs`, which takes the processor some thirty cycles to begin with, and memory that overlaps
//! it copies backwards, where that instruction goes byte by byte. Nearly all that the agent copies is a few bytes
//! long: what it writes as JSON and as metrics. So up to 64 bytes are loaded whole before any of them is stored,
//! which is right for overlapping memory too; only what is longer has a direction.

use std::arch::{
    asm,
    x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128},
};

const PIECE: usize = size_of::<__m128i>();

/// What C programs, and the compiler itself, call.
#[cfg(target_env = "musl")]
mod names {
    /// memcpy(3).
    ///
    /// # Safety
    /// As the C library has it.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { super::copy(to, from, length) };
        to
    }

    /// memmove(3).
    ///
    /// # Safety
    /// As the C library has it.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { super::copy(to, from, length) };
        to
    }
}

/// Copies `length` bytes between places that may overlap.
///
/// # Safety
/// `from` can be read and `to` written for `length` bytes.
#[cfg_attr(not(any(test, target_env = "musl")), expect(dead_code, reason = "only musl's are replaced"))]
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: each of these touches only the first or last bytes of the two places, and no more than there are.
    unsafe {
        match length {
            0 => {}
            1 => *to = *from,
            2..4 => ends::<u16>(to, from, length),
            4..8 => ends::<u32>(to, from, length),
            8..=16 => ends::<u64>(to, from, length),
            17..=32 => ends::<__m128i>(to, from, length),
            33..=64 => ends::<[__m128i; 2]>(to, from, length),
            _ if to.addr().wrapping_sub(from.addr()) >= length => forwards(to, from, length),
            _ => backwards(to, from, length),
        }
    }
}

/// The first and the last bytes, which meet or overlap when there are one to two times as many as in a `T`.
///
/// # Safety
/// As for [`copy`], and `length` is at least the size of `T`.
#[inline]
unsafe fn ends<T: Copy>(to: *mut u8, from: *const u8, length: usize) {
    let last = length - size_of::<T>();
    // SAFETY: both reads and writes are of as many bytes, at the beginning and at the end of what there is.
    unsafe {
        let (head, tail) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.cast::<T>().write_unaligned(head);
        to.add(last).cast::<T>().write_unaligned(tail);
    }
}

/// # Safety
/// As for [`copy`], and `to` is not within what is still to be read.
#[inline]
unsafe fn forwards(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the instruction copies `length` bytes upwards; the direction flag is clear wherever Rust runs.
    unsafe {
        asm!("rep movsb", inout("rcx") length => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As for [`copy`], and `length` is at least a piece.
#[inline]
unsafe fn backwards(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: a piece is within the places as long as `left` is no shorter; what is below it has not been written yet,
    // but for the first piece, which was read before.
    unsafe {
        let first = _mm_loadu_si128(from.cast());
        let mut left = length;
        while left > PIECE {
            left -= PIECE;
            _mm_storeu_si128(to.add(left).cast(), _mm_loadu_si128(from.add(left).cast()));
        }
        _mm_storeu_si128(to.cast(), first);
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    const ROOM: usize = 700;

    #[test]
    fn every_length_at_every_distance() {
        let original: Vec<u8> = (0..ROOM).map(|place| (place * 7 + place / 251) as u8).collect();
        for length in (0..=150).chain([255, 256, 257, 400]) {
            for from in [100, 101, 117] {
                for to in 0..ROOM - length {
                    let mut expected = original.clone();
                    expected.copy_within(from..from + length, to);
                    let mut copied = original.clone();
                    let start = copied.as_mut_ptr();
                    // SAFETY: both places are within the vector.
                    unsafe { copy(start.add(to), start.add(from), length) };
                    assert!(copied == expected, "{length} bytes from {from} to {to}");
                }
            }
        }
    }
}
