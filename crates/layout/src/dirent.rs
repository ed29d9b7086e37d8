//! Directory pages.
//!
//! A directory is a tree over 63-bit cookies: the upper 55 bits hash the name, the lower 8
//! tell names of equal hash apart. The cookie is an entry's place for `readdir`; it never changes
//! while the entry lives. Leaves are append-only between compactions: a removed entry keeps its
//! space with inode number 0. Index pages hold sorted keys.

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::node::{HEADER, PAYLOAD, used};
use std::ops::Range;

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes in front of the name.
pub const ENTRY_HEADER: usize = 20;
/// Entries of one index page.
pub const INDEX_MAX: usize = PAYLOAD / INDEX_SIZE;
/// Bytes of an index entry.
pub const INDEX_SIZE: usize = 16;
/// Lower bits of a cookie that tell names of equal hash apart.
pub const CLASH_BITS: u32 = 8;
/// Most index levels above the leaves.
pub const DEPTH_MAX: u16 = 6;
/// Offset of the inode number within an entry; 0 there marks a removed entry.
pub const OFF_INO: usize = 8;

/// One entry of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Offset of the entry within the page.
    pub at: usize,
    /// Cookie.
    pub cookie: u64,
    /// Inode number, 0 if removed.
    pub ino: u64,
    /// `DT_*` file type.
    pub kind: u8,
    /// Name.
    pub name: &'a [u8],
}

/// Bytes that an entry with a name of `name_len` bytes takes.
pub fn entry_len(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len).next_multiple_of(4)
}

/// First cookie of the names with this 64-bit hash; its lower 8 bits are zero.
pub fn cookie_of_hash(hash: u64) -> u64 {
    (hash >> 9).max(1) << CLASH_BITS
}

/// Appends an encoded entry.
pub fn encode_entry(cookie: u64, ino: u64, kind: u8, name: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + entry_len(name.len()), 0);
    put_entry(cookie, ino, kind, name, &mut out[start..]);
}

/// Encodes an entry into zeros, [`entry_len`] of them.
pub fn put_entry(cookie: u64, ino: u64, kind: u8, name: &[u8], e: &mut [u8]) {
    let len = entry_len(name.len());
    put_u64(e, 0, cookie);
    put_u64(e, OFF_INO, ino);
    put_u16(e, 16, len as u16);
    e[18] = kind;
    e[19] = name.len() as u8;
    e[ENTRY_HEADER..ENTRY_HEADER + name.len()].copy_from_slice(name);
}

/// Iterates over the entries of a leaf, removed ones included. Stops at the first entry that
/// cannot be one; [`leaf_is_sound`] tells whether that happened.
#[inline]
pub fn entries(page: &[u8]) -> Entries<'_> {
    entries_from(page, HEADER)
}

/// See [`entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    page: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    // In a loop over a page most of what it yields is not looked at.
    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        let entry = entry(self.page, self.at..self.end)?;
        self.at += entry_len(entry.name.len());
        Some(entry)
    }
}

impl Entries<'_> {
    /// Offset within the page behind the last entry yielded.
    pub fn place(&self) -> usize {
        self.at
    }
}

/// The entry at the start of `range`, which ends where the entries of the page do.
#[inline]
fn entry(page: &[u8], range: Range<usize>) -> Option<Entry<'_>> {
    let at = range.start;
    let e = page.get(range)?;
    if e.len() < ENTRY_HEADER {
        return None;
    }
    let len = usize::from(get_u16(e, 16));
    let name_len = usize::from(e[19]);
    if len != entry_len(name_len) || len > e.len() || name_len == 0 {
        return None;
    }
    Some(Entry {
        at,
        cookie: get_u64(e, 0),
        ino: get_u64(e, OFF_INO),
        kind: e[18],
        name: &e[ENTRY_HEADER..ENTRY_HEADER + name_len],
    })
}

/// Offset within the page behind its last entry.
fn end(page: &[u8]) -> usize {
    HEADER + (used(page) as usize).min(PAYLOAD)
}

/// The entry at an offset at which [`entries`] has shown one.
#[inline]
pub fn entry_at(page: &[u8], at: usize) -> Option<Entry<'_>> {
    entry(page, at..end(page))
}

/// As [`entries`], those from an offset on at which there is one, or behind the last.
pub fn entries_from(page: &[u8], at: usize) -> Entries<'_> {
    Entries {
        page,
        at,
        end: end(page),
    }
}

/// Whether the entries of a leaf fill its used bytes exactly.
pub fn leaf_is_sound(page: &[u8]) -> bool {
    let mut it = entries(page);
    it.by_ref().for_each(drop);
    used(page) as usize <= PAYLOAD && it.at == it.end
}

/// The `i`-th entry of an index page: smallest cookie below the child, and the child's node id.
pub fn index_entry(page: &[u8], i: usize) -> (u64, u32) {
    let at = HEADER + i * INDEX_SIZE;
    (get_u64(page, at), get_u32(page, at + 8))
}

/// Encodes an index entry.
pub fn encode_index(key: u64, child: u32) -> [u8; INDEX_SIZE] {
    let mut b = [0; INDEX_SIZE];
    put_u64(&mut b, 0, key);
    put_u32(&mut b, 8, child);
    b
}

/// Position of the child that covers `cookie`.
pub fn index_search(page: &[u8], cookie: u64) -> usize {
    let n = (used(page) as usize).min(INDEX_MAX);
    let (mut lo, mut hi) = (0, n);
    while lo < hi {
        let mid = (lo + hi) / 2;
        if index_entry(page, mid).0 <= cookie {
            lo = mid + 1
        } else {
            hi = mid
        }
    }
    lo.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;
    use crate::node::OFF_USED;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_back(names in prop::collection::vec(prop::collection::vec(1u8.., 1..60), 1..40)) {
            let mut bytes = Vec::new();
            for (i, n) in names.iter().enumerate() {
                encode_entry(i as u64 * 256, i as u64, 8, n, &mut bytes);
            }
            prop_assume!(bytes.len() <= PAYLOAD);
            let mut page = vec![0; BLOCK];
            page[HEADER..HEADER + bytes.len()].copy_from_slice(&bytes);
            put_u32(&mut page, OFF_USED, bytes.len() as u32);
            prop_assert!(leaf_is_sound(&page));
            let got: Vec<_> = entries(&page).map(|e| (e.ino, e.name.to_vec())).collect();
            let want: Vec<_> = names.iter().cloned().enumerate().map(|(i, n)| (i as u64, n)).collect();
            prop_assert_eq!(got, want);
        }

        #[test]
        fn any_bytes_are_walked_without_panic(bytes in prop::collection::vec(any::<u8>(), BLOCK)) {
            let _ = entries(&bytes).count();
            let _ = leaf_is_sound(&bytes);
            let _ = index_search(&bytes, 77);
        }
    }

    #[test]
    fn search_finds_the_covering_child() {
        let mut page = vec![0; BLOCK];
        for (i, k) in [0u64, 100, 200].iter().enumerate() {
            page[HEADER + i * INDEX_SIZE..HEADER + (i + 1) * INDEX_SIZE]
                .copy_from_slice(&encode_index(*k, i as u32));
        }
        put_u32(&mut page, OFF_USED, 3);
        for (c, want) in [(0, 0), (99, 0), (100, 1), (199, 1), (200, 2), (u64::MAX, 2)] {
            assert_eq!(index_search(&page, c), want);
        }
    }
}
