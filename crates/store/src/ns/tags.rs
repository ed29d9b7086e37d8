//! Where the entries of a directory leaf are, in DRAM.
//!
//! Entries follow each other in no order, so a lookup of a name has to walk the whole page. With this it looks at a
//! few lines of numbers, and at the entries whose hash ends as that of its name does.

use quayfs_layout::dirent::{self, CLASH_BITS, Entry};

/// Offsets of the entries of a page, removed ones included, each with a part of its hash. The start of
/// an entry never moves before the page is written anew.
#[derive(Clone, Debug, Default)]
pub struct Tags {
    /// Part of the hash, offset.
    words: Vec<u32>,
    /// Up to where the page has been walked.
    end: usize,
}

/// The hash's last bits: the first ones have led to this leaf, and are alike in it.
fn tag(cookie: u64) -> u32 {
    (cookie >> CLASH_BITS) as u32 & 0xffff
}

impl Tags {
    /// Those of a page.
    pub fn of(page: &[u8]) -> Self {
        let mut tags = Self {
            words: Vec::with_capacity(64),
            end: quayfs_layout::node::HEADER,
        };
        tags.extend(page);
        tags
    }

    /// Entries were added behind those that are known.
    pub fn extend(&mut self, page: &[u8]) {
        let mut more = dirent::entries_from(page, self.end);
        let words = more.by_ref().map(|e| tag(e.cookie) << 16 | e.at as u32);
        self.words.extend(words);
        self.end = more.place();
    }

    /// Whether the entries still are where they were after bytes of the page have become others: if an
    /// entry was removed or points elsewhere, or if it is behind all that are known.
    pub fn survive(&self, at: usize, len: usize) -> bool {
        at >= self.end || len <= size_of::<u64>()
    }

    /// The live entries of `page` whose name may have the hash of `cookie`, and others seldom.
    pub fn candidates<'p>(
        &self,
        page: &'p [u8],
        cookie: u64,
    ) -> impl Iterator<Item = Entry<'p>> + use<'_, 'p> {
        let wanted = tag(cookie);
        let found = (self.words.iter()).filter(move |w| **w >> 16 == wanted);
        found
            .filter_map(|w| dirent::entry_at(page, (w & 0xffff) as usize))
            .filter(|e| e.ino != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quayfs_layout::dirent::{OFF_INO, encode_entry, entries};
    use quayfs_layout::node::{HEADER, OFF_USED};

    /// A page with names at places of their own, and what tells them.
    fn page(names: &[(u64, u8)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (i, &(hash, len)) in names.iter().enumerate() {
            let name = vec![b'a'; usize::from(len)];
            encode_entry(
                dirent::cookie_of_hash(hash),
                i as u64 + 1,
                8,
                &name,
                &mut bytes,
            );
        }
        let mut page = vec![0; 4096];
        page[OFF_USED..OFF_USED + 4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        page[HEADER..HEADER + bytes.len()].copy_from_slice(&bytes);
        page
    }

    proptest! {
        #[test]
        fn candidates_are_those_of_a_walk(
            names in prop::collection::vec((0u64..1 << 14, 1u8..40), 0..60),
            known in 0usize..60,
            removed in 0usize..60,
        ) {
            // Few hashes, far apart and close together.
            let names: Vec<_> = names.iter().map(|&(h, len)| (h << 9 | (h & 3) << 40, len)).collect();
            let known = known.min(names.len());
            let mut tags = Tags::of(&page(&names[..known]));
            let mut all = page(&names);
            tags.extend(&all);
            let at = entries(&all).nth(removed).map(|e| e.at);
            if let Some(at) = at {
                assert!(tags.survive(at + OFF_INO, 8));
                all[at + OFF_INO..at + OFF_INO + 8].fill(0);
            }
            for cookie in names.iter().map(|n| dirent::cookie_of_hash(n.0)) {
                let group = |e: &Entry<'_>| e.cookie & !0xff == cookie;
                let found: Vec<_> = tags.candidates(&all, cookie).filter(group).collect();
                let walked: Vec<_> = entries(&all).filter(|e| e.ino != 0).filter(group).collect();
                prop_assert_eq!(found, walked);
            }
        }
    }

    #[test]
    fn a_page_written_anew_is_another() {
        let tags = Tags::of(&page(&[(1, 3), (2, 4)]));
        assert!(!tags.survive(HEADER, 24));
        assert!(tags.survive(tags.end, 24));
    }
}
