//! Slots and records. What can be healed is; then recovery runs as it would for a read-only mount,
//! on the media themselves: everything up to the first damage is kept, what follows is dropped.

use quayfs_shown::count;
use std::collections::BTreeSet;
use std::sync::Arc;

use quayfs_fs::recovery::{self, journal_geometry};
use quayfs_journal::{Damage, Journal, Scan, SlotDamage};
use quayfs_layout::inode;
use quayfs_layout::item::{self, Item};
use quayfs_layout::jsb::{Closed, SeqWord, WordKind, committed_salt};
use quayfs_layout::node::{HEADER, INODES_PER_PAGE};
use quayfs_layout::record::{
    MAX_RECORD_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, body_crc,
};
use quayfs_layout::slot::{COMMITTED_OFFSET, SLOT_HEADER_BYTES, SlotHeader, committed};
use quayfs_layout::{Ino, LINE};
use quayfs_options::MountOptions;

use super::{Area, Failed, Repair, heal};

impl Repair<'_> {
    fn scan(&self) -> Option<Scan> {
        let geo = journal_geometry(&self.media.geo, self.media.salt);
        Journal::scan(Arc::clone(&self.media.region), &geo).ok()
    }

    /// Whether the journal is empty and sound afterwards, so that the home pages are all there is.
    pub(super) fn journal(&mut self) -> Result<bool, Failed> {
        let Some(mut scan) = self.scan() else {
            return Ok(false);
        };
        if self.stray_epoch(&scan)? {
            match self.scan() {
                Some(again) => scan = again,
                None => return Ok(false),
            }
        }
        if !scan.damage.is_empty() || scan.repairs() > 0 {
            self.slots(&scan)?;
            self.heal_lanes(&scan)?;
            match self.scan() {
                Some(again) => scan = again,
                None => return Ok(false),
            }
            for d in &scan.damage {
                self.log.add(Area::Journal, format_args!("given up: {d}"));
            }
        }
        let vouched = self.vouched_words(&scan)?;
        if scan.damage.is_empty() && scan.records.is_empty() && scan.repairs() + vouched == 0 {
            return Ok(true);
        }
        self.dropped(&scan);
        if scan.repairs() > 0 {
            let what = format_args!("{} slot headers are written again", scan.repairs());
            self.log.add(Area::Journal, what);
        }
        let replayed = scan
            .records
            .iter()
            .take_while(|r| r.seq <= scan.intact_upto());
        let replayed = replayed.count();
        drop(scan);
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        self.begin()?;
        match recovery::recover(self.volume, &options) {
            Ok(engine) => drop(engine),
            Err(e) => {
                self.log
                    .add(Area::Recovery, format_args!("recovery failed: {e}"));
                return Ok(false);
            }
        }
        let what = format_args!(
            "recovered: {} replayed, a new epoch begun",
            count(replayed as u64, "record")
        );
        self.log.add(Area::Recovery, what);
        Ok(self.scan().is_some_and(|s| s.records.is_empty()))
    }

    fn slot_off(&self, buffer: u16, index: u64) -> u64 {
        let g = &self.media.geo;
        g.slot_hdr_off + (u64::from(buffer) * g.slots_per_buffer + index) * LINE as u64
    }

    /// What a slot that is given up takes along: nothing, if none was in use.
    fn count_slot(&mut self, scan: &Scan) -> &'static str {
        if scan.closed == Closed::Empty {
            return "nothing was staged there";
        }
        self.log.older_blocks += 1;
        "if a block was staged there, it shows older content"
    }

    /// Whatever is staged in a slot counts no more.
    pub(super) fn give_up_slot(&mut self, buffer: u16, index: u64) -> Result<(), Failed> {
        let off = self.slot_off(buffer, index) + COMMITTED_OFFSET;
        let word = SeqWord::encode(0, committed_salt(self.media.salt, buffer, index));
        self.put(off, word)
    }

    /// Heals damaged slots; of one that cannot be healed nothing is known but that it is lost.
    fn slots(&mut self, scan: &Scan) -> Result<(), Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        for d in &scan.damage {
            if let Damage::Unwritten {
                buffer,
                first,
                count,
            } = *d
            {
                for index in first..first + count {
                    self.give_up_slot(buffer, index)?;
                }
                self.log.add(Area::Journal, format_args!("{d}; given up"));
                continue;
            }
            let Damage::Slot {
                buffer,
                index,
                kind,
            } = *d
            else {
                continue;
            };
            let off = self.slot_off(buffer, index);
            let at = format!("staging buffer {buffer}, slot {index}");
            let what = match kind {
                SlotDamage::CommittedWord => {
                    let word = committed_salt(salt, buffer, index);
                    let last = self.last_number(scan);
                    let valid = |w| SeqWord::decode(w, word).is_some_and(|seq| seq <= last);
                    if self.heal_word(off + COMMITTED_OFFSET, valid)? {
                        format!("{at}: the committed word is healed")
                    } else {
                        self.give_up_slot(buffer, index)?;
                        let lost = self.count_slot(scan);
                        format!("{at}: the committed word is lost; {lost}")
                    }
                }
                SlotDamage::Header => {
                    let valid = |b: &[u8]| {
                        let b = b.first_chunk::<SLOT_HEADER_BYTES>();
                        let h = b.and_then(|b| SlotHeader::decode(b, salt, buffer));
                        h.is_some_and(|h| {
                            h.pos % g.slots_per_buffer == index && h.epoch <= scan.epoch
                        })
                    };
                    if self.heal_bytes(off, SLOT_HEADER_BYTES as u64, valid)? {
                        format!("{at}: the header is healed")
                    } else {
                        self.give_up_slot(buffer, index)?;
                        let lost = self.count_slot(scan);
                        format!("{at}: the header is lost; {lost}")
                    }
                }
                SlotDamage::LostRecord if self.has_no_such_number(scan, buffer, index) => {
                    self.give_up_slot(buffer, index)?;
                    let lost = self.count_slot(scan);
                    format!("{at}: no record has had its number; {lost}")
                }
                // Recovery sees to these.
                SlotDamage::LostRecord | SlotDamage::NamedTwice | SlotDamage::NoSuchBuffer => {
                    continue;
                }
            };
            self.log.add(Area::Journal, what);
        }
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

    /// Committed words of slots for which a record vouches: recovery writes them again.
    fn vouched_words(&self, scan: &Scan) -> Result<usize, Failed> {
        let (g, salt) = (self.media.geo, self.media.salt);
        let mut bad = 0;
        for run in scan.records.iter().flat_map(|r| &r.runs) {
            for pos in run.pos..run.pos + run.blocks.len() as u64 {
                let index = pos % g.slots_per_buffer;
                if u64::from(run.buffer) < g.buffers {
                    let mut b = [0; SLOT_HEADER_BYTES];
                    self.media
                        .region
                        .read(self.slot_off(run.buffer, index), &mut b);
                    bad += usize::from(committed(&b, salt, run.buffer, index).is_none());
                }
            }
        }
        Ok(bad)
    }

    /// Goes along the lanes and heals records that fail their check.
    fn heal_lanes(&mut self, scan: &Scan) -> Result<(), Failed> {
        let in_lanes = |d: &Damage| matches!(d, Damage::Record { .. } | Damage::Missing { .. });
        if !scan.damage.iter().any(in_lanes) {
            return Ok(());
        }
        for lane in 0..self.media.geo.buffers as u16 {
            let kind = WordKind::Head(lane);
            let raw = self
                .media
                .region
                .load_u64(self.media.geo.jsb_off + kind.offset());
            let Some(head) = SeqWord::decode(raw, kind.salt(self.media.salt)) else {
                continue;
            };
            self.heal_lane(lane, head * LINE as u64, scan)?;
        }
        Ok(())
    }

    fn heal_lane(&mut self, lane: u16, head: u64, scan: &Scan) -> Result<(), Failed> {
        let (g, salt, epoch) = (self.media.geo, self.media.salt, scan.epoch);
        let region = Arc::clone(&self.media.region);
        let base = g.lane_off + u64::from(lane) * g.lane_bytes;
        let header = |b: &[u8], pos| {
            let b = b.first_chunk::<RECORD_HEADER_BYTES>()?;
            RecordHeader::decode(b, salt, lane, epoch, pos)
        };
        let held = region.held(base..base + g.lane_bytes);
        let held: Vec<_> = held.iter().map(|r| r.start - base..r.end - base).collect();
        let end = head + g.lane_bytes;
        let mut pos = head;
        // Whether a record ends here: only there is a header worth trying.
        let mut boundary = true;
        while pos < end {
            let off = base + pos % g.lane_bytes;
            let room = (g.lane_bytes - pos % g.lane_bytes).min(end - pos);
            let read = |off| region.read_vec(off, RECORD_HEADER_BYTES as u64);
            let body_is_sound = |h: &RecordHeader| {
                let body = region.read_vec(off + LINE as u64, h.body_len.into());
                body_crc(&body, salt) == h.body_crc
            };
            let fits = |h: &RecordHeader| {
                h.total_bytes() <= room && h.total_bytes() <= MAX_RECORD_BYTES as u64
                    || h.kind == RecordKind::Filler && h.total_bytes() <= room
            };
            let mut h = header(&read(off), pos).filter(fits);
            if h.is_none() && boundary {
                // A header alone proves nothing at the end of a lane: the body must be there too.
                let valid = |b: &[u8]| {
                    header(b, pos).is_some_and(|h| {
                        fits(&h) && (h.kind == RecordKind::Filler || body_is_sound(&h))
                    })
                };
                if self.heal_bytes(off, RECORD_HEADER_BYTES as u64, valid)? {
                    h = header(&read(off), pos);
                    let what =
                        format_args!("lane {lane}, position {pos}: the record's header is healed");
                    self.log.add(Area::Journal, what);
                }
            }
            let Some(h) = h else {
                // What follows is found line by line, where anything is.
                boundary = false;
                let at = pos % g.lane_bytes + LINE as u64;
                let here = held.partition_point(|r| r.end <= at);
                let start = held.get(here).map_or(g.lane_bytes, |r| r.start.max(at));
                pos = pos - pos % g.lane_bytes + start / LINE as u64 * LINE as u64;
                continue;
            };
            boundary = true;
            let replayable = h.kind == RecordKind::Operation && h.seq > scan.digested;
            if replayable && self.heal_body(off + LINE as u64, &h)? {
                let what = format_args!("lane {lane}, position {pos}: record {} is healed", h.seq);
                self.log.add(Area::Journal, what);
            }
            pos += h.total_bytes();
        }
        Ok(())
    }

    /// Heals the body of a record that is one bit away from its checksum; whether it was.
    fn heal_body(&mut self, off: u64, h: &RecordHeader) -> Result<bool, Failed> {
        let salt = self.media.salt;
        let body = self.media.region.read_vec(off, h.body_len.into());
        let difference = body_crc(&body, salt) ^ h.body_crc;
        let Some(bit) = heal::bit(body.len(), difference) else {
            return Ok(false);
        };
        let (word, mask) = heal::mask(off, bit);
        self.put(word, self.media.region.load_u64(word) ^ mask)?;
        Ok(true)
    }

    /// Says which operations recovery is going to drop, and whose they were.
    fn dropped(&mut self, scan: &Scan) {
        let intact = scan.intact_upto();
        let gone: Vec<_> = scan.records.iter().filter(|r| r.seq > intact).collect();
        let (Some(first), Some(last)) = (gone.first(), gone.last()) else {
            return;
        };
        let what = format_args!(
            "{} operations behind the damage (records {} to {}) are dropped: what they changed is as it was before them",
            gone.len(),
            first.seq,
            last.seq
        );
        self.log.add(Area::Journal, what);
        let mut inodes = BTreeSet::new();
        for r in &gone {
            inodes.extend(self.inodes(&r.items));
        }
        for ino in inodes {
            self.log
                .of(Area::Journal, ino, "its last changes are dropped");
        }
    }

    /// The inodes whose images the items of a record change.
    fn inodes(&self, items: &[u8]) -> Vec<Ino> {
        let g = &self.media.geo;
        let page = |id: u32| {
            u64::from(id)
                .checked_sub(g.inode_base)
                .filter(|p| *p < g.inode_end() - g.inode_base)
        };
        let ino = |item| match item {
            Item::Delta { id, at, bytes } if at >= HEADER && bytes.len() == inode::SIZE => {
                Some(page(id)? * INODES_PER_PAGE + ((at - HEADER) / inode::SIZE) as u64)
            }
            _ => None,
        };
        item::decode(items).flatten().filter_map(ino).collect()
    }
}
