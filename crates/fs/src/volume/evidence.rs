//! Whether a volume still is what a copy of its configuration table describes.
//!
//! The copy of an earlier volume on the same disk is as whole as that of the last one. What tells them apart is what a new
//! volume writes to the front of the region: an entry for each block, checksums, and a log of the page table that is cleared.
//! What overwrites the beginning by accident leaves everything behind its end.

use std::fs::File;
use std::os::unix::fs::FileExt;

use quayfs_layout::BLOCK;
use quayfs_layout::bytes::{get_u32, get_u64};
use quayfs_layout::checksum::{WORD_BITS, WORD_MAX, crc32c};
use quayfs_layout::config::ConfigTable;
use quayfs_layout::l2p::{
    BLOCKS_MAX, BlockState, COMMIT_AT, CRC_BYTES, ENTRY_BYTES, Entry, PBN_BITS, SPARE_AT,
    decode_commit,
};
use quayfs_layout::node;

/// Entries of the page table, and of the NAT, by which they are known.
const SAMPLE: u64 = 64;
/// Entries of the page table among which written blocks are looked for.
const WIDE: u64 = 4096;
/// Pages that are looked at for entries of another page table.
const PAGES: u64 = 256;

const B: u64 = BLOCK as u64;

/// A region, and the file with the data that begin there.
pub(super) struct Media<'f> {
    pub(super) region: &'f File,
    pub(super) data: &'f File,
    pub(super) start: u64,
}

impl Media<'_> {
    /// `Err`: why they are not, or are no longer, those of this table.
    pub(super) fn judge(&self, config: &ConfigTable) -> Result<(), &'static str> {
        // All over it, since of an earlier volume on the same disk some may be left.
        let right = self.entries(config, SAMPLE).len() as u64;
        if right * 4 >= SAMPLE * 3 {
            return Ok(());
        }
        // What has overwritten the beginning may have taken the page table, but not what lies behind it.
        if !self.has_log(config) {
            return Err("most of its page table is gone, and so is the log behind it");
        }
        if !self.has_nodes(config) {
            return Err("most of its page table and of its metadata is not there");
        }
        if self.has_other_entries(config) {
            return Err("the page table of another volume lies where its own was");
        }
        match self.has_content(config) {
            true => Ok(()),
            false => Err("the data are not what its page table says"),
        }
    }

    fn region(&self, at: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        let read = self.region.read_exact_at(&mut bytes, at);
        read.is_ok().then_some(bytes)
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.region(at, 8).map(|b| get_u64(&b, 0))
    }

    /// Of so many entries of the page table those that are of this volume.
    fn entries(&self, config: &ConfigTable, sample: u64) -> Vec<(u64, Entry)> {
        let (g, salt) = (&config.geometry, config.salt());
        let lbns = spread(g.blocks, sample);
        let read =
            lbns.filter_map(|lbn| Some((lbn, self.word(g.l2p_map_off + lbn * ENTRY_BYTES)?)));
        read.filter_map(|(lbn, word)| Some((lbn, Entry::decode(word, lbn, salt)?)))
            .collect()
    }

    /// The log of the page table lies behind the page table and its checksums.
    fn has_log(&self, config: &ConfigTable) -> bool {
        let is_word = |at| {
            let word = self.word(config.geometry.l2p_log_off + at);
            word.is_some_and(|word| decode_commit(word, config.salt()).is_some())
        };
        is_word(COMMIT_AT) && is_word(SPARE_AT)
    }

    /// Most of the NAT is of this volume, and most of the pages that it names.
    fn has_nodes(&self, config: &ConfigTable) -> bool {
        let (g, salt) = (&config.geometry, config.salt());
        let page = |id: u32| node::nat_decode(id, self.word(g.nat_entry(id))?, salt);
        let ids = spread(g.nat_entries, SAMPLE).map(|id| id as u32);
        let right = ids.filter(|id| page(*id).is_some()).count() as u64;
        let (mut named, mut sound) = (0, 0);
        for id in (1..g.dyn_base.min(u64::from(u32::MAX)) as u32).take(WIDE as usize) {
            let Some(Some(page)) = page(id).filter(|p| p.is_none_or(|p| p < g.node_pages)) else {
                continue;
            };
            let bytes = self.region(g.node_page(page), B);
            named += 1;
            sound += u64::from(bytes.is_some_and(|b| node::check(&b, id, salt).is_ok()));
        }
        right * 4 >= SAMPLE * 3 && sound * 4 >= named * 3
    }

    /// Whether there are entries of another volume where this one had its page table: that is a later one. Where it had
    /// checksums they may be those of an earlier one, since mkfs of earlier builds did not write these.
    fn has_other_entries(&self, config: &ConfigTable) -> bool {
        let g = &config.geometry;
        let pages = g.blocks * ENTRY_BYTES / B;
        // No volume on this disk has more blocks.
        let most = g.pmem_len / B + g.data_blocks;
        spread(pages, PAGES).any(|page| {
            let bytes = self.region(g.l2p_map_off + page * B, B);
            let first = page * (B / ENTRY_BYTES);
            bytes.is_some_and(|b| is_of_others(&b, first, config.salt(), most))
        })
    }

    /// Whether written blocks have the content that the page table says; also if there is none to tell by.
    fn has_content(&self, config: &ConfigTable) -> bool {
        let g = &config.geometry;
        let entries = self.entries(config, WIDE).into_iter();
        let written = entries.filter(|(_, e)| e.state == BlockState::Written && e.pbn < g.blocks);
        let (mut read, mut right) = (0, 0);
        for (lbn, e) in written.take(SAMPLE as usize) {
            let mut block = vec![0; BLOCK];
            let at = self.start + (g.data_start + e.pbn) * B;
            let there = self.data.read_exact_at(&mut block, at).is_ok();
            let crc = self.region(g.l2p_crc_off + lbn * CRC_BYTES, CRC_BYTES);
            let crc = crc.map(|b| get_u32(&b, 0));
            read += 1;
            right += u64::from(there && crc == Some(crc32c(&block)));
        }
        right * 2 >= read
    }
}

/// So many numbers below `len`, from the first one to the last.
fn spread(len: u64, sample: u64) -> impl Iterator<Item = u64> {
    let (last, steps) = (
        len.saturating_sub(1),
        sample.min(len).saturating_sub(1).max(1),
    );
    (0..sample.min(len)).map(move |n| (u128::from(last) * u128::from(n) / u128::from(steps)) as u64)
}

/// Whether nearly all words of a page look like entries of a page table, those of LBNs from `first` on, and are not ours.
fn is_of_others(page: &[u8], first: u64, salt: u64, most: u64) -> bool {
    let words = page.chunks_exact(8).map(|b| get_u64(b, 0));
    let others = (first..).zip(words).filter(|(lbn, word)| {
        let (number, check) = (word & WORD_MAX, word >> WORD_BITS);
        let is_entry = number >> PBN_BITS <= 1 && number % BLOCKS_MAX < most && check != 0;
        is_entry && Entry::decode(*word, *lbn, salt).is_none()
    });
    let mut pbns: Vec<u64> = others.map(|(_, word)| word % BLOCKS_MAX).collect();
    pbns.sort_unstable();
    pbns.dedup();
    pbns.len() * 8 >= page.len() / 8 * 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_other_entries_is_known() {
        let page = |salt: u64, f: fn(u64) -> u64| -> Vec<u8> {
            let entry = |lbn| Entry {
                pbn: f(lbn),
                state: BlockState::Zero,
            };
            let words = (512..1024).map(|lbn| entry(lbn).encode(lbn, salt).to_le_bytes());
            words.flatten().collect()
        };
        let is = |page: &[u8]| is_of_others(page, 512, 7, 1 << 20);
        assert!(is(&page(8, |lbn| lbn)));
        assert!(is(&page(8, |lbn| 2000 - lbn)));
        assert!(!is(&page(7, |lbn| lbn)), "ours");
        assert!(!is(&page(8, |_| 5)) && !is(&page(8, |lbn| lbn << 20)));
        let (zeros, text) = ([0; BLOCK], b"configuration".repeat(316));
        let numbers: Vec<u8> = (0..512u64).flat_map(u64::to_le_bytes).collect();
        assert!(!is(&zeros) && !is(&[0xff; BLOCK]) && !is(&text[..BLOCK]) && !is(&numbers));
    }

    #[test]
    fn samples_are_all_over_it() {
        assert_eq!(spread(0, 4).count(), 0);
        assert_eq!(spread(1, 4).collect::<Vec<_>>(), [0]);
        assert_eq!(spread(3, 4).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(spread(100, 4).collect::<Vec<_>>(), [0, 33, 66, 99]);
    }
}
