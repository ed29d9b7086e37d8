//! The page table's entries, and what blocks hold.

use std::collections::VecDeque;
use std::sync::Arc;

use quayfs_fs::recovery::journal_geometry;
use quayfs_journal::{Journal, LiveSlot};
use quayfs_layout::checksum::crc32c;
use quayfs_layout::l2p::{BlockState, CRC_BYTES, ENTRY_BYTES, Entry};
use quayfs_layout::{BLOCK, Lbn};
use rustc_hash::{FxHashMap, FxHashSet};

use super::tree::Tree;
use super::{Area, Failed, Repair, heal};
use crate::bitset::BitSet;
use crate::media::Media;

/// Blocks read from the device at once.
const AT_ONCE: usize = 256;

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

    /// The content of a block, whether or not its checksum holds; `None` for what cannot be read.
    pub(super) fn read(&self, lbn: Lbn) -> Option<Vec<u8>> {
        if let Some(slot) = self.newest.get(&lbn) {
            return Some(
                self.media
                    .region
                    .read_vec(self.payload_off(slot), BLOCK as u64),
            );
        }
        let entry = self.media.entry(lbn)?;
        match entry.state {
            BlockState::Zero => Some(vec![0; BLOCK]),
            BlockState::Written => self.media.block(entry.pbn),
        }
    }

    /// The content of a block if its checksum holds.
    pub(super) fn sound(&self, lbn: Lbn) -> Option<Vec<u8>> {
        let bytes = self.read(lbn)?;
        let crc = match (self.newest.get(&lbn), self.media.entry(lbn)?.state) {
            (Some(slot), _) => slot.crc,
            (None, BlockState::Zero) => return Some(bytes),
            (None, BlockState::Written) => self.media.crc(lbn),
        };
        (crc32c(&bytes) == crc).then_some(bytes)
    }
}

/// Checksums of physical blocks, each read at most once.
#[derive(Default)]
struct Crcs(FxHashMap<u64, Option<u32>>);

impl Crcs {
    /// Reads blocks in order, neighbours together. Those that cannot be read that way are left to [`Crcs::of`].
    fn load(&mut self, media: &Media, pbns: &[u64]) {
        for run in pbns
            .chunks(AT_ONCE)
            .flat_map(|some| some.chunk_by(|a, b| a + 1 == *b))
        {
            let mut buf = vec![0; run.len() * BLOCK];
            if media
                .device
                .read(media.geo.data_start + run[0], &mut buf)
                .is_ok()
            {
                let crcs = buf.chunks_exact(BLOCK).map(|b| Some(crc32c(b)));
                self.0.extend(run.iter().copied().zip(crcs));
            }
        }
    }

    /// That of a block; `None` if it cannot be read.
    fn of(&mut self, media: &Media, pbn: u64) -> Option<u32> {
        let read = || media.block(pbn).map(|b| crc32c(&b));
        *self.0.entry(pbn).or_insert_with(read)
    }

    /// Whether a block holds what an LBN's checksum says.
    fn hold(&mut self, media: &Media, pbn: u64, lbn: Lbn) -> bool {
        self.of(media, pbn) == Some(media.crc(lbn))
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
        let tree = Tree::survey(&media);
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
        let g = self.media.geo;
        let mut crcs = Crcs::default();
        let (owned, mut homeless) = self.homes(&mut crcs)?;
        if !homeless.is_empty() {
            let free: Vec<u64> = owned.missing().collect();
            homeless.sort_unstable();
            // What can be recognized by its content comes first, what is left over is for the others.
            let (rest, free) = self.recognize(homeless, free, &mut crcs, tree)?;
            self.give(rest, free, contents, tree)?;
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

    /// The physical blocks that have an owner, and the LBNs that have none. Entries that can be healed are.
    fn homes(&mut self, crcs: &mut Crcs) -> Result<(BitSet, Vec<Lbn>), Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let mut owned = BitSet::new(g.blocks);
        let mut doubled: Vec<(Lbn, Entry)> = Vec::new();
        let mut bad: Vec<Lbn> = Vec::new();
        for lbn in 0..g.blocks {
            match self.media.entry(lbn) {
                None => bad.push(lbn),
                Some(e) if owned.add(e.pbn) => {}
                Some(e) => doubled.push((lbn, e)),
            }
        }
        let mut homeless = self.contested(&doubled, crcs);
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
        Ok((owned, homeless))
    }

    /// Of several LBNs with one physical block all but one, in order: the first one keeps it, unless it holds the
    /// content of a later one and not its own.
    fn contested(&self, doubled: &[(Lbn, Entry)], crcs: &mut Crcs) -> Vec<Lbn> {
        if doubled.is_empty() {
            return Vec::new();
        }
        let mut owner: FxHashMap<u64, Lbn> = doubled.iter().map(|(_, e)| (e.pbn, 0)).collect();
        // From the last one to the first.
        for lbn in (0..self.media.geo.blocks).rev() {
            if let Some(e) = self.media.entry(lbn)
                && let Some(first) = owner.get_mut(&e.pbn)
            {
                *first = lbn;
            }
        }
        let mut homeless = Vec::with_capacity(doubled.len());
        for (lbn, e) in doubled {
            let before = owner[&e.pbn];
            let wins = e.state == BlockState::Written
                && crcs.hold(&self.media, e.pbn, *lbn)
                && !crcs.hold(&self.media, e.pbn, before);
            if wins {
                owner.insert(e.pbn, *lbn);
            }
            homeless.push(if wins { before } else { *lbn });
        }
        homeless
    }

    /// Gives LBNs of files those free blocks back that have their content. Each block is read once. Returns the LBNs
    /// and the blocks that are left.
    fn recognize(
        &mut self,
        homeless: Vec<Lbn>,
        free: Vec<u64>,
        crcs: &mut Crcs,
        tree: &Tree<'_>,
    ) -> Result<(Vec<Lbn>, Vec<u64>), Failed> {
        let mut by_crc: FxHashMap<u32, VecDeque<u64>> = FxHashMap::default();
        if homeless.iter().any(|lbn| tree.lbns.has(*lbn)) {
            crcs.load(&self.media, &free);
            for &pbn in &free {
                if let Some(crc) = crcs.of(&self.media, pbn) {
                    by_crc.entry(crc).or_default().push_back(pbn);
                }
            }
        }
        let mut rest = Vec::new();
        let mut given = FxHashSet::default();
        for lbn in homeless {
            let same = by_crc.get_mut(&self.media.crc(lbn));
            let found = same.filter(|_| tree.lbns.has(lbn));
            let Some(pbn) = found.and_then(VecDeque::pop_front) else {
                rest.push(lbn);
                continue;
            };
            given.insert(pbn);
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
        let left = free.into_iter().filter(|pbn| !given.contains(pbn));
        Ok((rest, left.collect()))
    }

    /// Gives LBNs blocks whose content was not recognized as that of any LBN.
    fn give(
        &mut self,
        lbns: Vec<Lbn>,
        free: Vec<u64>,
        contents: &Contents<'_>,
        tree: &Tree<'_>,
    ) -> Result<(), Failed> {
        for (lbn, pbn) in lbns.into_iter().zip(free) {
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
        let mut given_up: Vec<LiveSlot> = Vec::new();
        let mut lost = FxHashSet::default();
        for slot in &contents.live {
            let off = contents.payload_off(slot);
            let index = slot.pos % g.slots_per_buffer;
            let lbn = slot.lbn;
            let valid = |b: &[u8]| crc32c(b) == slot.crc;
            let exists = lbn < g.visible_blocks();
            if exists && valid(&region.read_vec(off, BLOCK as u64)) {
                continue;
            }
            if exists && self.heal_block(off, slot.crc)? {
                self.about(Area::Staged, lbn, tree, format!("LBN {lbn} is healed"));
                continue;
            }
            given_up.push(*slot);
            let newest = contents.newest.get(&lbn) == Some(slot);
            if newest {
                lost.insert(lbn);
            }
            if newest
                && exists
                && tree.lbns.has(lbn)
                && let Some(e) = self.media.entry(lbn)
            {
                self.poison(lbn, e.pbn)?;
                let what = format!("LBN {lbn}: its newest content is lost; it reads as an error");
                self.about(Area::Staged, lbn, tree, what);
            } else {
                let what = format_args!(
                    "staging buffer {}, slot {index}: given up; nothing is lost",
                    slot.buffer
                );
                self.log.add(Area::Staged, what);
            }
        }
        if given_up.is_empty() {
            return Ok(());
        }
        // With a slot gone, what the device has would be the newest: it is unreadable before that.
        self.drain()?;
        // Older versions of what is lost must not come back either.
        let older = contents.live.iter().filter(|s| lost.contains(&s.lbn));
        let all: FxHashSet<LiveSlot> = given_up.iter().chain(older).copied().collect();
        for s in contents.live.iter().filter(|s| all.contains(s)) {
            self.give_up_slot(s.buffer, s.pos % g.slots_per_buffer)?;
        }
        Ok(())
    }

    /// Heals a block whose checksum is known, as [`Repair::heal_bytes`] does.
    fn heal_block(&mut self, off: u64, crc: u32) -> Result<bool, Failed> {
        let content = self.media.region.read_vec(off, BLOCK as u64);
        let Some(bit) = heal::bit_of(&content, crc) else {
            return Ok(false);
        };
        let (word, mask) = heal::mask(off, bit);
        self.put(word, self.media.region.load_u64(word) ^ mask)?;
        Ok(true)
    }

    /// Blocks on the device that are one bit away from their checksum, or whose checksum is one bit
    /// away from them.
    fn content(&mut self, contents: &Contents<'_>, tree: &Tree<'_>) -> Result<(), Failed> {
        let mut written = false;
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
            } else if let Some(bit) = heal::bit_of(&block, crc) {
                // One sector changes, which a crash leaves old or new.
                block[bit / 8] ^= 1 << (bit % 8);
                let at = self.media.geo.data_start + e.pbn;
                self.media.device.write(at, &block)?;
                written = true;
            } else {
                continue;
            }
            self.about(Area::Content, lbn, tree, format!("LBN {lbn} is healed"));
        }
        if written {
            self.media.device.flush()?;
        }
        Ok(())
    }
}
