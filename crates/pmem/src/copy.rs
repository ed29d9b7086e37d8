//! Copying bytes to and from memory that other threads may be touching.
//!
//! The callers have checked bounds; what remains are data races. The medium is shared between
//! threads, and a reader may copy what a writer is just replacing (a reader of a slot revalidates
//! afterwards, a scan verifies checksums). The protocol's locks and checksums make such a torn copy
//! detectable, and nothing typed is ever read: every bit pattern is a valid `u8` and `u64`. To keep
//! the compiler from assuming that races cannot happen, shared memory is only touched by relaxed
//! atomics, by inline assembly, or by libpmem.
#![allow(unsafe_code)]

use crate::units::first_atom;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

const WORD: usize = 8;

/// Splits `len` bytes at `ptr` into single bytes up to an aligned word, words, and single bytes.
fn split(ptr: *const u8, len: usize) -> (usize, usize) {
    let head = (ptr.addr().wrapping_neg() % WORD).min(len);
    let words = (len - head) / WORD;
    (head, words)
}

/// From this many bytes on, a string instruction beats a loop over words. (Miri runs no assembly.)
const STRING: usize = 512;
/// Bytes that [`across`] copies at a time without one: fewer than [`STRING`], so that they are read by words.
const PIECE: usize = 256;

/// Copies `buf.len()` bytes at `src` out of shared memory.
///
/// # Safety
/// `src` is valid for reading that many bytes for the whole call.
pub(crate) unsafe fn load(src: *const u8, buf: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if buf.len() >= STRING {
        // SAFETY: the caller vouches for `src`, and `buf` is a live exclusive slice of that length,
        // outside of the shared memory since no reference into it exists. The direction flag is
        // clear by the ABI.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") buf.len() => _,
                inout("rsi") src => _,
                inout("rdi") buf.as_mut_ptr() => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    // SAFETY: the caller vouches for `src`.
    unsafe { load_words(src, buf) }
}

/// [`load`] by bytes and aligned words.
///
/// # Safety
/// As for [`load`].
unsafe fn load_words(src: *const u8, buf: &mut [u8]) {
    let (head, words) = split(src, buf.len());
    let (ragged, rest) = buf.split_at_mut(head);
    let (whole, tail) = rest.split_at_mut(words * WORD);
    // SAFETY: all accesses are inside `src..src + buf.len()`, which the caller vouches for; the word
    // pointers are aligned by the choice of `head`; everything is atomic, so races are defined.
    unsafe {
        for (i, byte) in ragged.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(src.add(i).cast_mut()).load(Ordering::Relaxed);
        }
        let aligned = src.add(head).cast::<u64>();
        for (i, chunk) in whole.chunks_exact_mut(WORD).enumerate() {
            let word = AtomicU64::from_ptr(aligned.add(i).cast_mut()).load(Ordering::Relaxed);
            chunk.copy_from_slice(&u64::from_le(word).to_le_bytes());
        }
        let after = src.add(head + words * WORD);
        for (i, byte) in tail.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(after.add(i).cast_mut()).load(Ordering::Relaxed);
        }
    }
}

/// Copies `len` bytes from one shared memory to another, in no order. Words that are aligned in both come whole, also if
/// the process ends in between: what outlives it is read by words.
///
/// # Safety
/// `src` is valid for reading that many bytes for the whole call, `dst` for writing, and they do not overlap.
pub(crate) unsafe fn across(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= STRING {
        let (head, words) = split(dst, len);
        let rest = head + words * WORD;
        // SAFETY: the caller vouches for both, and the three parts lie inside. An interrupt falls between two words. The
        // direction flag is clear by the ABI.
        unsafe {
            pieces_across(src, dst, head);
            std::arch::asm!(
                "rep movsq",
                inout("rcx") words => _,
                inout("rsi") src.add(head) => _,
                inout("rdi") dst.add(head) => _,
                options(nostack, preserves_flags)
            );
            pieces_across(src.add(rest), dst.add(rest), len - rest);
        }
        return;
    }
    // SAFETY: as above.
    unsafe { pieces_across(src, dst, len) }
}

/// [`across`] by way of memory of this thread.
///
/// # Safety
/// As for [`across`].
unsafe fn pieces_across(src: *const u8, dst: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        let mut piece = [0; PIECE];
        let piece = &mut piece[..PIECE.min(len - at)];
        // SAFETY: the piece lies inside of what the caller vouches for.
        unsafe {
            load(src.add(at), piece);
            store(dst.add(at), piece);
        }
        at += piece.len();
    }
}

/// Copies `bytes` to shared memory at `dst`, in no order.
///
/// # Safety
/// `dst` is valid for writing that many bytes for the whole call.
pub(crate) unsafe fn store_unordered(dst: *mut u8, bytes: &[u8]) {
    match bytes.len() < STRING {
        // SAFETY: the caller vouches for `dst`.
        true => unsafe { store(dst, bytes) },
        // SAFETY: the caller vouches for `dst`, and no reference into shared memory exists that `bytes` could be.
        false => unsafe { across(bytes.as_ptr(), dst, bytes.len()) },
    }
}

/// Copies `bytes` to shared memory at `dst`, as the stores that [`atoms`](crate::atoms) names, in
/// ascending order. This granularity and order is part of the persistence model.
///
/// # Safety
/// `dst` is valid for writing that many bytes for the whole call.
pub(crate) unsafe fn store(dst: *mut u8, bytes: &[u8]) {
    let (head, words) = split(dst, bytes.len());
    let (ragged, rest) = bytes.split_at(head);
    let (whole, tail) = rest.split_at(words * WORD);
    // SAFETY: all accesses are inside `dst..dst + bytes.len()`, which the caller vouches for; the
    // word pointers are aligned by the choice of `head`; everything is atomic, so races are defined.
    unsafe {
        store_ragged(dst, ragged);
        let aligned = dst.add(head).cast::<u64>();
        for (i, chunk) in whole.as_chunks::<WORD>().0.iter().enumerate() {
            AtomicU64::from_ptr(aligned.add(i))
                .store(u64::from_le_bytes(*chunk).to_le(), Ordering::Relaxed);
        }
        store_ragged(dst.add(head + words * WORD), tail);
    }
}

/// [`store`] for fewer than 8 bytes that contain no aligned word.
///
/// # Safety
/// As for [`store`].
unsafe fn store_ragged(mut dst: *mut u8, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let size = first_atom(dst.addr() as u64, bytes.len() as u64) as usize;
        let (atom, rest) = bytes.split_at(size);
        // SAFETY: the caller vouches for the range; the pointers are aligned by the choice of `size`.
        unsafe {
            match *atom {
                [a, b, c, d] => AtomicU32::from_ptr(dst.cast())
                    .store(u32::from_le_bytes([a, b, c, d]).to_le(), Ordering::Relaxed),
                [a, b] => AtomicU16::from_ptr(dst.cast())
                    .store(u16::from_le_bytes([a, b]).to_le(), Ordering::Relaxed),
                // One byte: `size` is a power of two below 8.
                _ => AtomicU8::from_ptr(dst).store(atom[0], Ordering::Relaxed),
            }
            dst = dst.add(size);
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_copy_agree() {
        let lens = [0, 1, 7, 8, 63, 255, 256, 257, 511, 512, 513, 700];
        let from: Vec<u8> = (0..1000u32).map(|n| (n * 7 / 3) as u8).collect();
        for (len, skip) in lens.into_iter().flat_map(|len| [(len, 0), (len, 5)]) {
            let part = &from[skip..skip + len];
            let mut expected = vec![0xee; 1000];
            expected[skip..skip + len].copy_from_slice(part);
            let mut made = [vec![0xee; 1000], vec![0xee; 1000], vec![0xee; 1000]];
            let [a, b, c] = &mut made;
            // SAFETY: all of them are longer than that.
            unsafe {
                store(a.as_mut_ptr().add(skip), part);
                store_unordered(b.as_mut_ptr().add(skip), part);
                across(part.as_ptr(), c.as_mut_ptr().add(skip), len);
            }
            assert!(made.iter().all(|m| *m == expected), "{len} at {skip}");
            let mut read = vec![0; len];
            // SAFETY: as above.
            unsafe { load(part.as_ptr(), &mut read) };
            assert_eq!(read, part);
        }
    }
}
