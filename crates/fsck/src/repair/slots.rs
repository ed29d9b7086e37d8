//! Slot headers and committed words. What cannot be healed says less than it did: a header without a word which block it was,
//! a word without a header only that there was one.

use quayfs_journal::{Damage, Scan, SlotDamage};
use quayfs_layout::jsb::{Closed, SeqWord, committed_salt};
use quayfs_layout::l2p::BlockState;
use quayfs_layout::slot::{COMMITTED_OFFSET, SLOT_HEADER_BYTES, SlotHeader};
use quayfs_layout::{LINE, Lbn};
use rustc_hash::{FxHashMap, FxHashSet};

use super::map::Contents;
use super::tree::Tree;
use super::{Area, Failed, Repair};

/// A committed word that says nothing, and that nothing takes for a damaged one that says something.
const NO_WORD: u64 = 0;

/// A slot whose header is sound and whose committed word is not.
#[derive(Clone, Copy)]
struct Wordless {
    buffer: u16,
    index: u64,
    header: SlotHeader,
}

impl Repair<'_> {
    pub(super) fn slot_off(&self, buffer: u16, index: u64) -> u64 {
        let g = &self.media.geo;
        g.slot_hdr_off + (u64::from(buffer) * g.slots_per_buffer + index) * LINE as u64
    }

    /// What so many slots that are given up take along: nothing, if none was in use.
    fn count_slots(&mut self, scan: &Scan, slots: u64) -> &'static str {
        if scan.closed == Closed::Empty || self.all_is_retired {
            return "nothing was staged there";
        }
        self.log.older_blocks += slots;
        "if a block was staged there, it shows older content"
    }

    /// Whatever is staged in a slot counts no more.
    pub(super) fn give_up_slot(&mut self, buffer: u16, index: u64) -> Result<(), Failed> {
        let off = self.slot_off(buffer, index) + COMMITTED_OFFSET;
        let word = SeqWord::encode(0, committed_salt(self.media.salt, buffer, index));
        self.put(off, word)
    }

    /// The header of a slot, if it is sound.
    fn slot_header(&self, buffer: u16, index: u64, epoch: u32) -> Option<SlotHeader> {
        let mut b = [0; SLOT_HEADER_BYTES];
        (self.media.region).read(self.slot_off(buffer, index), &mut b);
        let fits = |h: &SlotHeader| {
            h.pos % self.media.geo.slots_per_buffer == index && (1..=epoch).contains(&h.epoch)
        };
        SlotHeader::decode(&b, self.media.salt, buffer).filter(fits)
    }

    /// Whether it is told later what becomes of a slot: when it is known which files there are.
    pub(super) fn is_for_later(&self, damage: &Damage, scan: &Scan) -> bool {
        match *damage {
            Damage::Slot {
                buffer,
                index,
                kind: SlotDamage::CommittedWord,
            } => self.slot_header(buffer, index, scan.epoch).is_some(),
            _ => false,
        }
    }

    /// Heals damaged slots, or gives them up. Those of which is known what they held wait for [`Repair::wordless`].
    pub(super) fn slots(&mut self, scan: &Scan) -> Result<(), Failed> {
        for d in &scan.damage {
            match *d {
                Damage::Unwritten {
                    buffer,
                    first,
                    count,
                } => {
                    for index in first..first + count {
                        self.give_up_slot(buffer, index)?;
                    }
                    let lost = self.count_slots(scan, count);
                    self.log
                        .add(Area::Journal, format_args!("{d}; given up; {lost}"));
                }
                Damage::Slot {
                    buffer,
                    index,
                    kind,
                } => self.slot(scan, (buffer, index), kind)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn slot(
        &mut self,
        scan: &Scan,
        (buffer, index): (u16, u64),
        kind: SlotDamage,
    ) -> Result<(), Failed> {
        let off = self.slot_off(buffer, index);
        let (slots, salt) = (self.media.geo.slots_per_buffer, self.media.salt);
        let header = self.slot_header(buffer, index, scan.epoch);
        let healed = match kind {
            SlotDamage::CommittedWord => {
                let word = committed_salt(salt, buffer, index);
                let last = self.last_number(scan);
                let valid = |w| SeqWord::decode(w, word).is_some_and(|seq| seq <= last);
                self.heal_word(off + COMMITTED_OFFSET, valid)?
            }
            SlotDamage::Header => {
                let valid = |b: &[u8]| {
                    let b = b.first_chunk::<SLOT_HEADER_BYTES>();
                    let h = b.and_then(|b| SlotHeader::decode(b, salt, buffer));
                    h.is_some_and(|h| h.pos % slots == index && h.epoch <= scan.epoch)
                };
                self.heal_bytes(off, SLOT_HEADER_BYTES as u64, valid)?
            }
            SlotDamage::LostRecord => {
                // Recovery would take its word for that of an operation that never was.
                match header {
                    Some(_) => self.put(off + COMMITTED_OFFSET, NO_WORD)?,
                    None if self.has_no_such_number(scan, buffer, index) => {
                        self.give_up_slot(buffer, index)?;
                        let lost = self.count_slots(scan, 1);
                        let what = format_args!(
                            "staging buffer {buffer}, slot {index}: no record has had its number; {lost}"
                        );
                        self.log.add(Area::Journal, what);
                    }
                    None => self.log.older_blocks += 1,
                }
                return Ok(());
            }
            // Recovery sees to these.
            SlotDamage::NamedTwice | SlotDamage::NoSuchBuffer => return Ok(()),
        };
        let what = match kind {
            SlotDamage::CommittedWord => "committed word",
            _ => "header",
        };
        let is_for_later = kind == SlotDamage::CommittedWord && header.is_some();
        let end = match healed {
            true => "healed".to_string(),
            false if is_for_later && scan.closed != Closed::Empty => return Ok(()),
            false => {
                self.give_up_slot(buffer, index)?;
                format!("lost; {}", self.count_slots(scan, 1))
            }
        };
        let what = format_args!("staging buffer {buffer}, slot {index}: the {what} is {end}");
        self.log.add(Area::Journal, what);
        Ok(())
    }

    /// No record can have a higher number: those that are not digested lie in the lanes, one line each at least.
    fn last_number(&self, scan: &Scan) -> u64 {
        let g = &self.media.geo;
        scan.digested + g.buffers * (g.lane_bytes / LINE as u64)
    }

    /// Whether a committed word passes its check by chance, as one of 65536 words of garbage does: recovery would go on with
    /// its number, behind which there may be none left.
    fn has_no_such_number(&self, scan: &Scan, buffer: u16, index: u64) -> bool {
        let off = self.slot_off(buffer, index) + COMMITTED_OFFSET;
        let salt = committed_salt(self.media.salt, buffer, index);
        let seq = SeqWord::decode(self.media.region.load_u64(off), salt);
        seq.is_some_and(|seq| seq > self.last_number(scan))
    }

    /// Slots of which the header says what they held, and nothing whether that counts: if it is not the content that the
    /// block has elsewhere, the block reads as an error. Returns the slots (buffer and index) to be given up then, with what
    /// they or others have of these blocks.
    pub(super) fn wordless(
        &mut self,
        contents: &mut Contents<'_>,
        tree: &Tree<'_>,
    ) -> Result<Vec<(u16, u64)>, Failed> {
        let epoch = contents.epoch;
        let with_header = |&(buffer, index): &(u16, u64)| {
            let header = self.slot_header(buffer, index, epoch)?;
            Some(Wordless {
                buffer,
                index,
                header,
            })
        };
        let all: Vec<Wordless> = contents.wordless.iter().filter_map(with_header).collect();
        // Of the slots of one block in one buffer the last one counts.
        let mut last: FxHashMap<(u16, Lbn), u64> = FxHashMap::default();
        for slot in &all {
            let pos = last.entry((slot.buffer, slot.header.lbn)).or_default();
            *pos = slot.header.pos.max(*pos);
        }
        let mut lost = FxHashSet::default();
        for slot in &all {
            let (buffer, index, lbn) = (slot.buffer, slot.index, slot.header.lbn);
            let is_last = last[&(buffer, lbn)] == slot.header.pos;
            if self.all_is_retired || !is_last || !self.may_be_newest(slot, contents, tree) {
                let what = format_args!(
                    "staging buffer {buffer}, slot {index}: the committed word is lost; nothing is lost with it"
                );
                self.log.add(Area::Staged, what);
                continue;
            }
            let Some(e) = self.media.entry(lbn) else {
                continue;
            };
            // Mostly that of a slot which is free again: what is there may well be right.
            if e.state == BlockState::Written {
                let what = format!(
                    "LBN {lbn}: nothing says whether newer content counts, since a committed word is lost; it may be older"
                );
                self.log.older_blocks += 1;
                self.about(Area::Staged, lbn, tree, what);
            } else if lost.insert(lbn) {
                self.poison(lbn, e.pbn)?;
                let what = format!(
                    "LBN {lbn}: nothing says that its newest content counts, since the committed word is lost; it reads as an error"
                );
                self.log.lost_blocks += 1;
                self.about(Area::Staged, lbn, tree, what);
            }
        }
        // As with damaged content of slots: nothing older may come back.
        let older = contents.forget(&lost).into_iter();
        let older = older.map(|s| (s.buffer, s.pos % self.media.geo.slots_per_buffer));
        Ok(all
            .iter()
            .map(|s| (s.buffer, s.index))
            .chain(older)
            .collect())
    }

    /// Whether a file would show something older than this slot had.
    fn may_be_newest(&self, slot: &Wordless, contents: &Contents<'_>, tree: &Tree<'_>) -> bool {
        let SlotHeader {
            lbn,
            pos,
            payload_crc,
            ..
        } = slot.header;
        let exists = lbn < self.media.geo.visible_blocks() && tree.lbns.has(lbn);
        let is_there = || {
            let entry = self.media.entry(lbn);
            entry.is_some_and(|e| e.state == BlockState::Written)
                && self.media.crc(lbn) == payload_crc
        };
        exists
            && match contents.newest(lbn) {
                Some(newest) if newest.buffer == slot.buffer => newest.pos < pos,
                Some(newest) => newest.crc != payload_crc,
                None => !is_there(),
            }
    }
}
