//! Sparse content with cheap copies: what images are made of.

use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;
use std::sync::Arc;

/// Bytes in a page, and in a block of the data device.
pub(crate) const PAGE: usize = 4096;

/// Content of fixed length, zero where no page is. A copy shares pages until one of the two changes
/// them, so that an image costs only what it differs in.
#[derive(Clone)]
pub(crate) struct Pages {
    len: u64,
    map: FxHashMap<u64, Arc<Page>>,
    /// The sum of the hashes of all pages that are not zero.
    hash: u64,
}

#[derive(Clone)]
struct Page {
    bytes: [u8; PAGE],
    /// Of place and content; 0 for zeros.
    hash: u64,
}

impl Pages {
    /// Zeros.
    pub(crate) fn new(len: u64) -> Self {
        Self {
            len,
            map: FxHashMap::default(),
            hash: 0,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// A number that equal contents have in common and others hardly ever.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    #[track_caller]
    fn check(&self, off: u64, len: usize) {
        let inside = off
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.len);
        assert!(
            inside,
            "{len} bytes at {off} are outside of {} bytes",
            self.len
        );
    }

    #[track_caller]
    pub(crate) fn read(&self, off: u64, buf: &mut [u8]) {
        self.check(off, buf.len());
        for (index, start, range) in spans(off, buf.len()) {
            let part = &mut buf[range];
            match self.map.get(&index) {
                Some(page) => part.copy_from_slice(&page.bytes[start..start + part.len()]),
                None => part.fill(0),
            }
        }
    }

    #[track_caller]
    pub(crate) fn write(&mut self, off: u64, bytes: &[u8]) {
        let mut writer = self.writer();
        writer.write(off, bytes);
        writer.finish();
    }

    /// For many writes: hashes are made once per page, at the end.
    pub(crate) fn writer(&mut self) -> Writer<'_> {
        Writer {
            pages: self,
            touched: Vec::new(),
        }
    }

    /// The pages that are not zero, in no order: offset and content.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.map.iter().map(|(index, page)| {
            (
                index * PAGE as u64,
                &page.bytes[..page_len(self.len, *index)],
            )
        })
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        for (off, content) in self.extents() {
            bytes[off as usize..][..content.len()].copy_from_slice(content);
        }
        bytes
    }
}

/// How much of a page is inside.
fn page_len(len: u64, index: u64) -> usize {
    (len - index * PAGE as u64).min(PAGE as u64) as usize
}

/// Page, offset in the page and range in the buffer of each page that a range touches.
fn spans(off: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = off + done as u64;
        let start = (at % PAGE as u64) as usize;
        let part = (len - done).min(PAGE - start);
        let span = (at / PAGE as u64, start, done..done + part);
        done += part;
        (part > 0).then_some(span)
    })
}

/// Changes [`Pages`]. The hash is right again after [`Writer::finish`].
pub(crate) struct Writer<'a> {
    pages: &'a mut Pages,
    touched: Vec<u64>,
}

impl Writer<'_> {
    #[track_caller]
    pub(crate) fn write(&mut self, off: u64, bytes: &[u8]) {
        self.pages.check(off, bytes.len());
        for (index, start, range) in spans(off, bytes.len()) {
            let empty = || {
                Arc::new(Page {
                    bytes: [0; PAGE],
                    hash: 0,
                })
            };
            let page = Arc::make_mut(self.pages.map.entry(index).or_insert_with(empty));
            page.bytes[start..start + range.len()].copy_from_slice(&bytes[range]);
            if self.touched.last() != Some(&index) {
                self.touched.push(index);
            }
        }
    }

    pub(crate) fn finish(mut self) {
        self.touched.sort_unstable();
        self.touched.dedup();
        for index in self.touched {
            let Some(page) = self.pages.map.get_mut(&index) else {
                continue;
            };
            let hash = page_hash(index, &page.bytes);
            self.pages.hash = self.pages.hash.wrapping_sub(page.hash).wrapping_add(hash);
            if hash == 0 {
                self.pages.map.remove(&index);
            } else {
                Arc::make_mut(page).hash = hash;
            }
        }
    }
}

fn page_hash(index: u64, bytes: &[u8; PAGE]) -> u64 {
    if bytes.iter().all(|byte| *byte == 0) {
        return 0;
    }
    let mut hasher = FxHasher::default();
    hasher.write_u64(index);
    hasher.write(bytes);
    // Sums of these are compared, so the bits must be mixed well; and 0 is taken.
    mix(hasher.finish()).max(1)
}

/// A permutation of the 64-bit numbers without visible pattern (the finalizer of splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_was_written_and_copies_are_independent() {
        let mut pages = Pages::new(3 * 4096 + 100);
        pages.write(4000, &[1; 5000]);
        let before = pages.clone();
        pages.write(4096 * 3 + 90, &[2; 10]);
        let mut expected = vec![0; 3 * 4096 + 100];
        expected[4000..9000].fill(1);
        assert!(before.to_vec() == expected);
        expected[4096 * 3 + 90..].fill(2);
        assert!(pages.to_vec() == expected);
        let mut part = vec![9; 4200];
        pages.read(8000, &mut part);
        assert!(part == expected[8000..12200]);
    }

    #[test]
    fn the_hash_depends_on_content_only() {
        let mut one = Pages::new(1 << 20);
        let mut other = Pages::new(1 << 20);
        one.write(0, &[1; 10000]);
        one.write(500_000, &[3; 10]);
        other.write(500_000, &[3; 10]);
        other.write(300_000, &[7; 9000]);
        other.write(0, &[1; 10000]);
        assert_ne!(one.hash(), other.hash());
        other.write(300_000, &[0; 9000]);
        assert_eq!(one.hash(), other.hash());
        other.write(3, &[2]);
        assert_ne!(one.hash(), other.hash());
        let mut moved = Pages::new(1 << 20);
        moved.write(4096, &[1; 4096]);
        let mut here = Pages::new(1 << 20);
        here.write(0, &[1; 4096]);
        assert_ne!(here.hash(), moved.hash(), "the same page elsewhere");
    }

    #[test]
    #[should_panic(expected = "outside of 100 bytes")]
    fn the_end_is_the_end() {
        Pages::new(100).write(90, &[0; 11]);
    }
}
