//! Records. What can be healed is; then recovery runs as it would for a read-only mount,
//! on the media themselves: everything up to the first damage is kept, what follows is dropped.

use quayfs_shown::count;
use std::collections::BTreeSet;
use std::sync::Arc;

use quayfs_fs::recovery::{self, journal_geometry};
use quayfs_journal::{Damage, Journal, Record, Scan};
use quayfs_layout::bytes::get_u64;
use quayfs_layout::dirent::{CLASH_BITS, ENTRY_HEADER, OFF_INO};
use quayfs_layout::inode::{self, ROOT};
use quayfs_layout::item::{self, Item};
use quayfs_layout::jsb::{SeqWord, WordKind};
use quayfs_layout::node::{self, HEADER, INODES_PER_PAGE, nat_decode};
use quayfs_layout::record::{
    MAX_RECORD_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, body_crc,
};
use quayfs_layout::slot::{SLOT_HEADER_BYTES, committed};
use quayfs_layout::{Ino, LINE};
use quayfs_options::MountOptions;
use rustc_hash::FxHashMap;

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
        // Recovery digests what the records have, so that this does not hold any more.
        self.all_is_retired = scan.retired == scan.digested;
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
                if !self.is_for_later(d, &scan) {
                    self.log.add(Area::Journal, format_args!("given up: {d}"));
                }
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

    /// Says which operations recovery is going to drop, or does not find, and whose they were.
    fn dropped(&mut self, scan: &Scan) {
        let intact = scan.intact_upto();
        let last = scan.damage.iter().filter_map(|d| match d {
            Damage::Missing { last, .. } => Some(*last),
            d => d.seq(),
        });
        let last = last.chain(scan.records.last().map(|r| r.seq)).max();
        let lost = last.unwrap_or(0).saturating_sub(intact);
        self.log.lost_operations += lost;
        let gone: Vec<_> = scan.records.iter().filter(|r| r.seq > intact).collect();
        let (Some(first), Some(last)) = (gone.first(), gone.last()) else {
            return;
        };
        let what = format_args!(
            "{} behind the damage (records {} to {}) {} dropped: what they changed is as it was before them",
            count(gone.len() as u64, "operation"),
            first.seq,
            last.seq,
            if gone.len() == 1 { "is" } else { "are" },
        );
        self.log.add(Area::Journal, what);
        self.dropped_names(scan, &gone);
        let mut inodes = BTreeSet::new();
        for r in &gone {
            inodes.extend(self.inodes(&r.items));
        }
        for ino in inodes {
            self.log
                .of(Area::Journal, ino, "its last changes are dropped");
        }
    }

    /// The names that dropped records give: what has one of them is found by nothing else.
    fn dropped_names(&mut self, scan: &Scan, gone: &[&Record]) {
        let mut owners = FxHashMap::default();
        for item in scan.records.iter().flat_map(|r| item::decode(&r.items)) {
            if let Ok(Item::NodeNew { id, owner, .. }) = item {
                owners.insert(id, owner);
            }
        }
        for r in gone {
            let changed = self.inodes(&r.items);
            for item in item::decode(&r.items) {
                let Ok(Item::Delta { id, bytes, .. }) = item else {
                    continue;
                };
                let Some((ino, name)) = self.name_in(bytes) else {
                    continue;
                };
                // The page may be new in a record that is lost. The directory changes with its entries.
                let others = || changed.iter().copied().find(|other| *other != ino);
                let dir = owners.get(&id).copied().or_else(|| self.owner(id));
                let dir = dir.or_else(others).unwrap_or(ROOT);
                let what =
                    format_args!("inode {ino} does not get this name: the operation is dropped");
                self.log.below(Area::Journal, dir, name, what);
            }
        }
    }

    /// The directory entry that these bytes are, if they are one: its cookie is that of its name.
    fn name_in<'b>(&self, bytes: &'b [u8]) -> Option<(Ino, &'b [u8])> {
        let len = usize::from(*bytes.get(ENTRY_HEADER - 1)?);
        let name = bytes.get(ENTRY_HEADER..ENTRY_HEADER + len)?;
        let cookie = get_u64(bytes, 0) >> CLASH_BITS << CLASH_BITS;
        let ino = get_u64(bytes, OFF_INO);
        let is_one = len > 0 && ino != 0 && cookie == self.media.hash.cookie(name);
        is_one.then_some((ino, name))
    }

    /// The inode that has a node.
    fn owner(&self, id: u32) -> Option<Ino> {
        let g = &self.media.geo;
        (u64::from(id) < g.nat_entries).then_some(())?;
        let word = self.media.region.load_u64(g.nat_entry(id));
        let page = nat_decode(id, word, self.media.salt)??;
        (page < g.node_pages).then_some(())?;
        let page = (self.media.region).read_vec(g.node_page(page), HEADER as u64);
        Some(node::owner(&page))
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
