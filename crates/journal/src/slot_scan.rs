//! Slot headers after a crash: facts about each slot, to be judged by the table in `classify`.

use crate::LiveSlot;
use crate::classify::{Header, Verdict, Vouch, Word, classify};
use crate::error::{Damage, SlotDamage};
use crate::geometry::JournalGeometry;
use quayfs_layout::Guard;
use quayfs_layout::slot::{self, HeaderSeed, SLOT_HEADER_BYTES, SlotHeader};
use quayfs_pmem::Region;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// What a replayable record says of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) pos: u64,
    pub(crate) stage_id: u64,
    pub(crate) lbn: u64,
    pub(crate) crc: u32,
    pub(crate) seq: u64,
}

/// Slot headers looked at as one unit of work.
pub(crate) const PIECE: u64 = 4096;

/// What a slot is judged against.
pub(crate) struct SlotContext<'a> {
    pub(crate) geo: &'a JournalGeometry,
    pub(crate) region: &'a Region,
    pub(crate) named: &'a FxHashMap<(u16, u64), Named>,
    pub(crate) epoch: u32,
    pub(crate) digested: u64,
    pub(crate) retired: u64,
    /// Parts of the region that hold anything, where headers are.
    pub(crate) held: &'a [Range<u64>],
}

/// What one piece holds.
#[derive(Default)]
pub(crate) struct SlotPart {
    pub(crate) buffer: u16,

    pub(crate) max_seq: u64,
    pub(crate) live: Vec<LiveSlot>,
    pub(crate) damage: Vec<Damage>,
    pub(crate) rewrite: Vec<(u16, u64)>,
    pub(crate) above: Vec<(u16, u64)>,
}

impl SlotContext<'_> {
    /// Looks at up to [`PIECE`] headers of `buffer` from index `first` on.
    pub(crate) fn piece(&self, buffer: u16, first: u64) -> SlotPart {
        let mut part = SlotPart {
            buffer,
            ..SlotPart::default()
        };
        let n = PIECE.min(self.geo.slots_per_buffer - first);
        let off = self.geo.header(buffer, first);
        let here = self.held.partition_point(|r| r.end <= off);
        let end = off + n * SLOT_HEADER_BYTES as u64;
        if self.held.get(here).is_none_or(|r| r.start >= end) {
            self.unwritten(first, n, &mut part);
            return part;
        }
        let bytes = self.region.read_vec(off, n * SLOT_HEADER_BYTES as u64);
        let seed = HeaderSeed::new(self.geo.volume_salt, buffer);
        let (headers, _) = bytes.as_chunks::<SLOT_HEADER_BYTES>();
        for (index, raw) in (first..).zip(headers) {
            self.slot(index, raw, seed, &mut part);
        }
        part
    }

    /// Headers of zeros, which no slot of a formatted volume has: what records name is judged as ever, the rest together.
    fn unwritten(&self, first: u64, n: u64, part: &mut SlotPart) {
        let buffer = part.buffer;
        let end = first + n;
        let seed = HeaderSeed::new(self.geo.volume_salt, buffer);
        let mut named: Vec<u64> = match self.named.is_empty() {
            true => Vec::new(),
            false => (first..end)
                .filter(|index| self.named.contains_key(&(buffer, *index)))
                .collect(),
        };
        named.push(end);
        let mut at = first;
        for index in named {
            if at < index {
                let count = index - at;
                part.damage.push(Damage::Unwritten {
                    buffer,
                    first: at,
                    count,
                });
            }
            if index < end {
                self.slot(index, &[0; SLOT_HEADER_BYTES], seed, part);
            }
            at = index + 1;
        }
    }

    fn slot(
        &self,
        index: u64,
        raw: &[u8; SLOT_HEADER_BYTES],
        seed: HeaderSeed,
        part: &mut SlotPart,
    ) {
        let buffer = part.buffer;
        let number = slot::committed(raw, self.geo.volume_salt, buffer, index);
        let word = self.word(number);
        if word == Word::Above {
            part.above.push((buffer, index));
        }
        part.max_seq = part.max_seq.max(number.unwrap_or(0));
        let named = self.named.get(&(buffer, index)).copied();
        if named.is_none() && matches!(word, Word::Never | Word::Retired) {
            // Free whatever the header says, so most headers need not be looked at.
            debug_assert_eq!(
                classify(Header::Invalid, word, Vouch::Unnamed),
                Verdict::Free
            );
            debug_assert_eq!(classify(Header::Valid, word, Vouch::Unnamed), Verdict::Free);
            return;
        }
        let valid = SlotHeader::decode_seeded(raw, seed).filter(|h| {
            // Ordering 7: staged in any epoch up to the current one.
            h.pos % self.geo.slots_per_buffer == index && (1..=self.epoch).contains(&h.epoch)
        });
        let header = match (&valid, &named) {
            (None, _) => Header::Invalid,
            (Some(h), Some(n)) if !n.agrees(h, self.epoch) => Header::Differs,
            _ => Header::Valid,
        };
        let vouch = if named.is_some() {
            Vouch::Named
        } else {
            Vouch::Unnamed
        };
        let mut damaged = |kind| {
            part.damage.push(Damage::Slot {
                buffer,
                index,
                kind,
            })
        };
        match classify(header, word, vouch) {
            Verdict::Free => {}
            Verdict::DamagedWord => damaged(SlotDamage::CommittedWord),
            Verdict::DamagedHeader => damaged(SlotDamage::Header),
            Verdict::LostRecord => damaged(SlotDamage::LostRecord),
            verdict @ (Verdict::Live | Verdict::LiveRewrite) => {
                let live = live(buffer, named, valid, number);
                if verdict == Verdict::LiveRewrite {
                    part.rewrite.extend(live.map(|l| (buffer, l.pos)));
                }
                part.live.extend(live);
            }
        }
    }

    /// What the number in a committed word makes of its slot.
    fn word(&self, number: Option<u64>) -> Word {
        match number {
            None => Word::Bad,
            Some(0) => Word::Never,
            Some(n) if n <= self.retired && Guard::Retired.stands() => Word::Retired,
            Some(n) if n <= self.digested => Word::Digested,
            Some(_) => Word::Above,
        }
    }
}

/// What is live in a slot: what the record says if one vouches, else header and committed word, which are valid then.
fn live(
    buffer: u16,
    named: Option<Named>,
    valid: Option<SlotHeader>,
    number: Option<u64>,
) -> Option<LiveSlot> {
    named.map(|n| n.live(buffer)).or_else(|| {
        let (h, seq) = valid.zip(number)?;
        Some(LiveSlot {
            buffer,
            pos: h.pos,
            lbn: h.lbn,
            crc: h.payload_crc,
            seq,
        })
    })
}

impl Named {
    fn agrees(&self, h: &SlotHeader, epoch: u32) -> bool {
        // A replayable record is of the current epoch, and so is what it stages.
        if !Guard::SlotAgrees.stands() {
            return true;
        }
        let mine = (self.pos, self.stage_id, self.lbn, self.crc, epoch);
        mine == (h.pos, h.stage_id, h.lbn, h.payload_crc, h.epoch)
    }

    fn live(&self, buffer: u16) -> LiveSlot {
        LiveSlot {
            buffer,
            pos: self.pos,
            lbn: self.lbn,
            crc: self.crc,
            seq: self.seq,
        }
    }
}
