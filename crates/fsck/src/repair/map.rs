//! The page table's entries, and what blocks hold.

use std::sync::Arc;

use quayfs_fs::recovery::journal_geometry;
use quayfs_journal::{Damage, Journal, LiveSlot, SlotDamage};
use quayfs_layout::checksum::crc32c;
use quayfs_layout::l2p::{BlockState, CRC_BYTES, ENTRY_BYTES, Entry, ZERO_CRC};
use quayfs_layout::{BLOCK, Lbn};
use rustc_hash::{FxHashMap, FxHashSet};

use super::odds::{BLOCK_BITS, CRC_BITS, Odds};
use super::recognize::Crcs;
use super::tree::Tree;
use super::{Area, Failed, Repair, heal};
use crate::bitset::BitSet;
use crate::media::Media;

/// What blocks hold after recovery: the newest staged version, else what is on the device.
pub(super) struct Contents<'m> {
    media: &'m Media,
    newest: FxHashMap<Lbn, LiveSlot>,
    live: Vec<LiveSlot>,
    /// Buffer and index of slots whose committed words are damaged.
    pub(super) wordless: Vec<(u16, u64)>,
    /// The epoch that the journal is in.
    pub(super) epoch: u32,
}

impl<'m> Contents<'m> {
    /// `None` if the journal cannot be read.
    pub(super) fn load(media: &'m Media) -> Option<Self> {
        let geo = journal_geometry(&media.geo, media.salt);
        let scan = Journal::scan(Arc::clone(&media.region), &geo).ok()?;
        let wordless = scan.damage.iter().filter_map(|d| match *d {
            Damage::Slot {
                buffer,
                index,
                kind: SlotDamage::CommittedWord,
            } => Some((buffer, index)),
            _ => None,
        });
        let (wordless, live) = (wordless.collect(), scan.live);
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
            wordless,
            epoch: scan.epoch,
        })
    }

    /// Whether its newest version is a staged one.
    pub(super) fn is_staged(&self, lbn: Lbn) -> bool {
        self.newest.contains_key(&lbn)
    }

    /// The newest staged version of a block.
    pub(super) fn newest(&self, lbn: Lbn) -> Option<&LiveSlot> {
        self.newest.get(&lbn)
    }

    /// Nothing that is staged of these blocks counts any more: the slots that it is in.
    pub(super) fn forget(&mut self, lbns: &FxHashSet<Lbn>) -> Vec<LiveSlot> {
        self.newest.retain(|lbn, _| !lbns.contains(lbn));
        self.live
            .extract_if(.., |s| lbns.contains(&s.lbn))
            .collect()
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

impl Media {
    pub(super) fn entry_off(&self, lbn: Lbn) -> u64 {
        self.geo.l2p_map_off + lbn * ENTRY_BYTES
    }

    fn crc_off(&self, lbn: Lbn) -> u64 {
        self.geo.l2p_crc_off + lbn * CRC_BYTES
    }

    pub(super) fn entry(&self, lbn: Lbn) -> Option<Entry> {
        let word = self.region.load_u64(self.entry_off(lbn));
        Entry::decode(word, lbn, self.salt).filter(|e| e.pbn < self.geo.blocks)
    }

    pub(super) fn crc(&self, lbn: Lbn) -> u32 {
        self.region.load_u32(self.crc_off(lbn))
    }

    /// A physical block.
    pub(super) fn block(&self, pbn: u64) -> Option<Vec<u8>> {
        let mut buf = vec![0; BLOCK];
        self.device.read(self.geo.data_start + pbn, &mut buf).ok()?;
        Some(buf)
    }
}

impl Repair<'_> {
    pub(super) fn map(&mut self, tree: &Tree<'_>) -> Result<(), Failed> {
        let media = Media::of(self.volume);
        let Some(mut contents) = Contents::load(&media) else {
            return Ok(());
        };
        self.permutation(&contents, tree)?;
        let wordless = self.wordless(&mut contents, tree)?;
        self.staged(&contents, tree, &wordless)?;
        if self.log.lost_commits {
            self.older(&contents, tree);
        }
        if self.options.check_data {
            self.content(&contents, tree)?;
        }
        Ok(())
    }

    /// What is staged may have been written again by commits that are lost, and even be on the device in a newer version.
    fn older(&mut self, contents: &Contents<'_>, tree: &Tree<'_>) {
        let staged = contents.newest.keys().copied();
        let lbns: Vec<Lbn> = staged.filter(|lbn| tree.owner(*lbn).is_some()).collect();
        self.log.older_blocks += lbns.len() as u64;
        let older = "may show older content, since commits are lost";
        self.tell_by_file(&lbns, tree, older, older);
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

    pub(super) fn store_entry(&mut self, lbn: Lbn, entry: Entry) -> Result<(), Failed> {
        self.put(
            self.media.entry_off(lbn),
            entry.encode(lbn, self.media.salt),
        )
    }

    /// Every LBN has a physical block of its own again.
    fn permutation(&mut self, contents: &Contents<'_>, tree: &Tree<'_>) -> Result<(), Failed> {
        let g = self.media.geo;
        let mut crcs = Crcs::default();
        self.give_up_entries()?;
        let (owned, mut homeless) = self.homes(&mut crcs, tree)?;
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

    /// Gives LBNs blocks whose content was not recognized as that of any LBN.
    fn give(
        &mut self,
        lbns: Vec<Lbn>,
        free: Vec<u64>,
        contents: &Contents<'_>,
        tree: &Tree<'_>,
    ) -> Result<(), Failed> {
        let mut zeros = Vec::new();
        for (lbn, pbn) in lbns.into_iter().zip(free) {
            let matters = !contents.newest.contains_key(&lbn) && tree.lbns.has(lbn);
            if !matters {
                self.store_zero(lbn, pbn)?;
                let what = format_args!("LBN {lbn} gets physical block {pbn}; nothing is lost");
                self.log.add(Area::PageTable, what);
            } else if self.media.crc(lbn) == ZERO_CRC {
                // Whether it was written or not.
                self.store_zero(lbn, pbn)?;
                zeros.push(lbn);
            } else {
                // Reading it fails, and says so, rather than to show what is another's.
                self.poison(lbn, pbn)?;
                let what = format!("LBN {lbn}: its block is lost and reads as an error");
                self.log.lost_blocks += 1;
                self.about(Area::PageTable, lbn, tree, what);
            }
        }
        self.tell_by_file(&zeros, tree, "reads as zeros again", "read as zeros again");
        Ok(())
    }

    /// An LBN that reads as zeros, and whose checksum says so.
    fn store_zero(&mut self, lbn: Lbn, pbn: u64) -> Result<(), Failed> {
        if self.media.crc(lbn) != ZERO_CRC {
            self.put_u32(self.media.crc_off(lbn), ZERO_CRC)?;
        }
        let state = BlockState::Zero;
        self.store_entry(lbn, Entry { pbn, state })
    }

    /// Makes a block unreadable: written, with a checksum that it does not have and is not one bit away from, and that is not
    /// of zeros either: what is lost must not come back as these when its entry is damaged another time.
    pub(super) fn poison(&mut self, lbn: Lbn, pbn: u64) -> Result<(), Failed> {
        let crc = self.media.crc(lbn);
        let block = self.media.block(pbn);
        let have = block.as_ref().map(|block| crc32c(block));
        let may_pass = block
            .zip(have)
            .is_some_and(|(block, have)| have == crc || Flip::of(&block, have, crc).is_some());
        if may_pass || crc == ZERO_CRC {
            let have = have.unwrap_or(crc);
            // Two that are far from what it has.
            let other = [!have, have ^ 0x0f0f_0f0f];
            let new = other[usize::from(other[0] == ZERO_CRC)];
            self.put_u32(self.media.crc_off(lbn), new)?;
        }
        self.store_entry(
            lbn,
            Entry {
                pbn,
                state: BlockState::Written,
            },
        )
    }

    pub(super) fn about(&mut self, area: Area, lbn: Lbn, tree: &Tree<'_>, what: String) {
        match tree.owner(lbn) {
            Some((ino, block)) => {
                self.log
                    .of(area, ino, format_args!("block {block}: {what}"));
            }
            None => self.log.add(area, what),
        }
    }

    /// Staged blocks hold what they should, or are given up, as other slots are: rounds must not stumble over them.
    fn staged(
        &mut self,
        contents: &Contents<'_>,
        tree: &Tree<'_>,
        others: &[(u16, u64)],
    ) -> Result<(), Failed> {
        let g = self.media.geo;
        let mut given_up: Vec<LiveSlot> = Vec::new();
        let mut lost = FxHashSet::default();
        let (bad, may_heal) = self.damaged_slots(contents);
        for slot in &bad {
            let off = contents.payload_off(slot);
            let index = slot.pos % g.slots_per_buffer;
            let lbn = slot.lbn;
            let exists = lbn < g.visible_blocks();
            if exists && may_heal && self.heal_block(off, slot.crc)? {
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
                self.log.lost_blocks += 1;
                self.about(Area::Staged, lbn, tree, what);
            } else {
                let what = format_args!(
                    "staging buffer {}, slot {index}: given up; nothing is lost",
                    slot.buffer
                );
                self.log.add(Area::Staged, what);
            }
        }
        if given_up.is_empty() && others.is_empty() {
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
        for (buffer, index) in others {
            self.give_up_slot(*buffer, *index)?;
        }
        Ok(())
    }

    /// Live slots that do not hold what they should, and whether those that one bit explains may be healed.
    fn damaged_slots(&mut self, contents: &Contents<'_>) -> (Vec<LiveSlot>, bool) {
        let visible = self.media.geo.visible_blocks();
        let (mut bad, mut odds) = (Vec::new(), Odds::default());
        for slot in &contents.live {
            let off = contents.payload_off(slot);
            let bytes = self.media.region.read_vec(off, BLOCK as u64);
            let have = crc32c(&bytes);
            if slot.lbn < visible && have == slot.crc {
                continue;
            }
            bad.push(*slot);
            match heal::bit_of(&bytes, slot.crc) {
                _ if slot.lbn >= visible => {}
                Some(_) => odds.explained(have, slot.crc),
                None => odds.others += 1,
            }
        }
        (
            bad,
            self.decide(&odds, BLOCK_BITS, ["staged block", "checksum"]),
        )
    }

    /// Whether what one bit explains may be healed; if not, that is said.
    fn decide(&mut self, odds: &Odds, ways: u64, [what, other]: [&str; 2]) -> bool {
        let may_heal = odds.may_heal(ways);
        if odds.explained > 0 && !may_heal {
            self.log.note(odds.note(what, other));
        }
        may_heal
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
    /// away from them, unless there are too many others.
    fn content(&mut self, contents: &Contents<'_>, tree: &Tree<'_>) -> Result<(), Failed> {
        let (mut bits, mut sums) = (Odds::default(), Odds::default());
        let mut near = BitSet::new(self.media.geo.blocks);
        for lbn in tree.lbns.iter() {
            let Some(found) = self.unsound(contents, lbn) else {
                continue;
            };
            match found.flip {
                Some(Flip::Content(_)) => bits.explained(found.have, found.crc),
                Some(Flip::Checksum) => sums.explained(found.have, found.crc),
                None => {
                    bits.others += 1;
                    sums.others += 1;
                    continue;
                }
            }
            near.add(lbn);
        }
        let may_heal = self.decide(&bits, BLOCK_BITS, ["block", "checksum"]);
        let may_heal_sums = self.decide(&sums, CRC_BITS, ["checksum", "block"]);
        let mut written = false;
        for lbn in near.iter() {
            let Some(mut found) = self.unsound(contents, lbn) else {
                continue;
            };
            match found.flip {
                Some(Flip::Checksum) if may_heal_sums => {
                    self.put_u32(self.media.crc_off(lbn), found.have)?;
                }
                Some(Flip::Content(bit)) if may_heal => {
                    // One sector changes, which a crash leaves old or new.
                    found.block[bit / 8] ^= 1 << (bit % 8);
                    let at = self.media.geo.data_start + found.pbn;
                    self.media.device.write(at, &found.block)?;
                    written = true;
                }
                _ => continue,
            }
            self.about(Area::Content, lbn, tree, format!("LBN {lbn} is healed"));
        }
        if written {
            self.media.device.flush()?;
        }
        Ok(())
    }

    /// The block of an LBN on the device, if that counts, can be read and fails its checksum.
    fn unsound(&self, contents: &Contents<'_>, lbn: Lbn) -> Option<Unsound> {
        if contents.newest.contains_key(&lbn) {
            return None;
        }
        let entry = self.media.entry(lbn);
        let pbn = entry.filter(|e| e.state == BlockState::Written)?.pbn;
        let (block, crc) = (self.media.block(pbn)?, self.media.crc(lbn));
        let have = crc32c(&block);
        (have != crc).then(|| Unsound {
            flip: Flip::of(&block, have, crc),
            block,
            pbn,
            have,
            crc,
        })
    }
}

/// A block that fails its checksum.
struct Unsound {
    block: Vec<u8>,
    pbn: u64,
    /// The checksum of what it holds.
    have: u32,
    /// The one that it should have.
    crc: u32,
    flip: Option<Flip>,
}

/// The one bit that a block fails its checksum by.
#[derive(Clone, Copy)]
enum Flip {
    /// A bit of the checksum.
    Checksum,
    /// This bit of the content.
    Content(usize),
}

impl Flip {
    /// `have` is the checksum of what the block holds.
    fn of(block: &[u8], have: u32, crc: u32) -> Option<Self> {
        if (have ^ crc).is_power_of_two() {
            return Some(Self::Checksum);
        }
        heal::bit(block.len(), have ^ crc).map(Self::Content)
    }
}
