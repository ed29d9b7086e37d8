//! The page table's entries, and what blocks hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use quayfs_journal::{Journal, LiveSlot};
use quayfs_layout::checksum::crc32c;
use quayfs_layout::l2p::{BlockState, CRC_BYTES, ENTRY_BYTES, Entry};
use quayfs_layout::{BLOCK, Lbn};
use rustc_hash::FxHashMap;

use super::tree::Tree;
use super::{Area, Failed, Repair, heal};
use crate::fsck::bitset::BitSet;
use crate::fsck::media::Media;
use crate::recovery::journal_geometry;

/// What blocks hold after recovery: the newest staged version, else what is on the device.
pub(super) struct Contents<'m> {
    media: &'m Media,
    newest: FxHashMap<Lbn, LiveSlot>,
    live: Vec<LiveSlot>,
}

impl<'m> Contents<'m> {
    /// `None` if the journal cannot be read.
    pub(super) fn load(media: &'m Media) -> Option<Self> {
        let geo = journal_geometry(&media.geo, media.salt);
        let live = Journal::scan(Arc::clone(&media.region), &geo).ok()?.live;
        let mut newest: FxHashMap<Lbn, LiveSlot> = FxHashMap::default();
        for slot in &live {
            let best = newest.entry(slot.lbn).or_insert(*slot);
            if (slot.seq, slot.pos) > (best.seq, best.pos) {
                *best = *slot;
            }
        }
        Some(Self {
            media,
            newest,
            live,
        })
    }

    fn payload_off(&self, slot: &LiveSlot) -> u64 {
        let g = &self.media.geo;
        let place = u64::from(slot.buffer) * g.slots_per_buffer + slot.pos % g.slots_per_buffer;
        g.slot_data_off + place * BLOCK as u64
    }

    /// The content of a block, whether or not its checksum holds; `None` for zeros, and for what
    /// cannot be read because its entry is damaged.
    pub(super) fn read(&self, lbn: Lbn) -> Option<Vec<u8>> {
        if let Some(slot) = self.newest.get(&lbn) {
            return Some(
                self.media
                    .region
                    .read_vec(self.payload_off(slot), BLOCK as u64),
            );
        }
        let entry = self
            .media
            .entry(lbn)
            .filter(|e| e.state == BlockState::Written)?;
        self.media.block(entry.pbn)
    }
}

impl Media {
    fn entry_off(&self, lbn: Lbn) -> u64 {
        self.geo.l2p_map_off + lbn * ENTRY_BYTES
    }

    fn crc_off(&self, lbn: Lbn) -> u64 {
        self.geo.l2p_crc_off + lbn * CRC_BYTES
    }

    fn entry(&self, lbn: Lbn) -> Option<Entry> {
        let word = self.region.load_u64(self.entry_off(lbn));
        Entry::decode(word, lbn, self.salt).filter(|e| e.pbn < self.geo.blocks)
    }

    fn crc(&self, lbn: Lbn) -> u32 {
        self.region.load_u32(self.crc_off(lbn))
    }

    /// A physical block.
    fn block(&self, pbn: u64) -> Option<Vec<u8>> {
        let mut buf = vec![0; BLOCK];
        self.device.read(self.geo.data_start + pbn, &mut buf).ok()?;
        Some(buf)
    }

    /// Whether a physical block holds what an LBN's checksum says.
    fn holds(&self, pbn: u64, lbn: Lbn) -> bool {
        self.block(pbn).is_some_and(|b| crc32c(&b) == self.crc(lbn))
    }
}

impl Repair<'_> {
    pub(super) fn map(&mut self, tree: &Tree<'_>) -> Result<(), Failed> {
        let media = Media::of(self.volume);
        let Some(contents) = Contents::load(&media) else {
            return Ok(());
        };
        self.permutation(&contents, tree)?;
        self.staged(&contents, tree)?;
        if self.options.check_data {
            self.content(&contents, tree)?;
        }
        Ok(())
    }

    /// What can be done about content when nothing else is wrong.
    pub(super) fn content_only(&mut self) -> Result<(), Failed> {
        let media = Media::of(self.volume);
        if !self.options.check_data {
            return Ok(());
        }
        let Some(contents) = Contents::load(&media) else {
            return Ok(());
        };
        let tree = Tree::look(&media);
        self.content(&contents, &tree)?;
        self.log.resolve(|ino| tree.path(ino));
        Ok(())
    }

    fn store_entry(&mut self, lbn: Lbn, entry: Entry) -> Result<(), Failed> {
        self.put(
            self.media.entry_off(lbn),
            entry.encode(lbn, self.media.salt),
        )
    }

    /// Every LBN has a physical block of its own again.
    fn permutation(&mut self, contents: &Contents<'_>, tree: &Tree<'_>) -> Result<(), Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let mut owned = BitSet::new(g.blocks);
        let mut owner: BTreeMap<u64, Lbn> = BTreeMap::new();
        let mut homeless: Vec<Lbn> = Vec::new();
        let mut bad: Vec<Lbn> = Vec::new();
        for lbn in 0..g.blocks {
            match self.media.entry(lbn) {
                None => bad.push(lbn),
                Some(e) if owned.add(e.pbn) => {
                    owner.insert(e.pbn, lbn);
                }
                Some(e) => {
                    // The one whose content it is keeps it.
                    let before = owner.get(&e.pbn).copied().unwrap_or(lbn);
                    let wins = e.state == BlockState::Written
                        && self.media.holds(e.pbn, lbn)
                        && !self.media.holds(e.pbn, before);
                    if wins {
                        owner.insert(e.pbn, lbn);
                    }
                    homeless.push(if wins { before } else { lbn });
                }
            }
        }
        for lbn in bad {
            let free =
                |w| Entry::decode(w, lbn, salt).filter(|e| e.pbn < g.blocks && !owned.has(e.pbn));
            if self.heal_word(self.media.entry_off(lbn), |w| free(w).is_some())? {
                if let Some(e) = self.media.entry(lbn) {
                    owned.add(e.pbn);
                }
                let what = format_args!("the entry of LBN {lbn} is healed");
                self.log.add(Area::PageTable, what);
            } else {
                homeless.push(lbn);
            }
        }
        let mut free: Vec<u64> = (0..g.blocks).filter(|p| !owned.has(*p)).collect();
        homeless.sort_unstable();
        // Who can be recognized by his content first: what is left over is for the others.
        let mut rest = Vec::new();
        for lbn in homeless {
            let found = free.iter().position(|p| self.media.holds(*p, lbn));
            match found.filter(|_| tree.lbns.has(lbn)) {
                Some(n) => {
                    let pbn = free.remove(n);
                    self.store_entry(
                        lbn,
                        Entry {
                            pbn,
                            state: BlockState::Written,
                        },
                    )?;
                    let what = format!("LBN {lbn} has physical block {pbn} again, by its checksum");
                    self.about(Area::PageTable, lbn, tree, what);
                }
                None => rest.push(lbn),
            }
        }
        for (lbn, pbn) in rest.into_iter().zip(free) {
            let staged = contents.newest.contains_key(&lbn);
            if staged || !tree.lbns.has(lbn) {
                self.store_entry(
                    lbn,
                    Entry {
                        pbn,
                        state: BlockState::Zero,
                    },
                )?;
                let what = format_args!("LBN {lbn} gets physical block {pbn}; nothing is lost");
                self.log.add(Area::PageTable, what);
            } else {
                // Reading it fails, and says so, rather than to show what is another's.
                self.poison(lbn, pbn)?;
                let what = format!("LBN {lbn}: its block is lost and reads as an error");
                self.about(Area::PageTable, lbn, tree, what);
            }
        }
        for lbn in g.visible_blocks()..g.blocks {
            if let Some(e) = self.media.entry(lbn)
                && e.state == BlockState::Written
            {
                self.store_entry(
                    lbn,
                    Entry {
                        state: BlockState::Zero,
                        ..e
                    },
                )?;
                let what = format_args!("LBN {lbn} of the spare pool is in state zero again");
                self.log.add(Area::PageTable, what);
            }
        }
        Ok(())
    }

    /// Makes a block unreadable: written, with a checksum that it does not have.
    fn poison(&mut self, lbn: Lbn, pbn: u64) -> Result<(), Failed> {
        if self.media.holds(pbn, lbn) {
            self.put_u32(self.media.crc_off(lbn), !self.media.crc(lbn))?;
        }
        self.store_entry(
            lbn,
            Entry {
                pbn,
                state: BlockState::Written,
            },
        )
    }

    fn about(&mut self, area: Area, lbn: Lbn, tree: &Tree<'_>, what: String) {
        match tree.owner(lbn) {
            Some((ino, block)) => {
                self.log
                    .of(area, ino, format_args!("block {block}: {what}"));
            }
            None => self.log.add(area, what),
        }
    }

    /// Staged blocks hold what they should, or are given up: rounds must not stumble over them.
    fn staged(&mut self, contents: &Contents<'_>, tree: &Tree<'_>) -> Result<(), Failed> {
        let g = self.media.geo;
        let region = Arc::clone(&self.media.region);
        for slot in &contents.live {
            let off = contents.payload_off(slot);
            let index = slot.pos % g.slots_per_buffer;
            let lbn = slot.lbn;
            let valid = |b: &[u8]| crc32c(b) == slot.crc;
            let exists = lbn < g.visible_blocks();
            if exists && valid(&region.read_vec(off, BLOCK as u64)) {
                continue;
            }
            if exists && self.heal_bytes(off, BLOCK as u64, valid)? {
                self.about(Area::Staged, lbn, tree, format!("LBN {lbn} is healed"));
                continue;
            }
            let newest = contents.newest.get(&lbn) == Some(slot);
            if newest
                && exists
                && tree.lbns.has(lbn)
                && let Some(e) = self.media.entry(lbn)
            {
                self.poison(lbn, e.pbn)?;
                // With the slot gone, what the device has would be the newest.
                self.drain()?;
                let what = format!("LBN {lbn}: its newest content is lost; it reads as an error");
                self.about(Area::Staged, lbn, tree, what);
            } else {
                let what = format_args!(
                    "staging buffer {}, slot {index}: given up; nothing is lost",
                    slot.buffer
                );
                self.log.add(Area::Staged, what);
            }
            // An older version must not come back either.
            for s in contents
                .live
                .iter()
                .filter(|s| s == &slot || newest && s.lbn == lbn)
            {
                self.give_up_slot(s.buffer, s.pos % g.slots_per_buffer)?;
            }
        }
        Ok(())
    }

    /// Blocks on the device that are one bit away from their checksum, or whose checksum is one bit
    /// away from them.
    fn content(&mut self, contents: &Contents<'_>, tree: &Tree<'_>) -> Result<(), Failed> {
        for lbn in tree.lbns.iter() {
            if contents.newest.contains_key(&lbn) {
                continue;
            }
            let Some(e) = self
                .media
                .entry(lbn)
                .filter(|e| e.state == BlockState::Written)
            else {
                continue;
            };
            let (Some(mut block), crc) = (self.media.block(e.pbn), self.media.crc(lbn)) else {
                continue;
            };
            let have = crc32c(&block);
            if have == crc {
                continue;
            }
            if (have ^ crc).count_ones() == 1 {
                self.put_u32(self.media.crc_off(lbn), have)?;
            } else if heal::bytes(&mut block, |b| crc32c(b) == crc).is_some() {
                // One sector changes, which a crash leaves old or new.
                let at = self.media.geo.data_start + e.pbn;
                self.media.device.write(at, &block)?;
                self.media.device.flush()?;
            } else {
                continue;
            }
            self.about(Area::Content, lbn, tree, format!("LBN {lbn} is healed"));
        }
        Ok(())
    }
}
