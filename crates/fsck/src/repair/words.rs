//! Words of the journal superblock.

use std::sync::Arc;

use quayfs_fs::recovery::journal_geometry;
use quayfs_fs::volume::superblock;
use quayfs_journal::{Journal, Scan};
use quayfs_layout::LINE;
use quayfs_layout::jsb::{Closed, EpochWord, MAX_NUMBER, Mode, SeqWord, WordKind};
use quayfs_layout::record::{RECORD_HEADER_BYTES, RecordHeader};

use super::{Area, Failed, Repair};

impl Repair<'_> {
    pub(super) fn epoch_word(&self) -> Option<EpochWord> {
        let raw = self.media.region.load_u64(self.offset(WordKind::Epoch));
        EpochWord::decode(raw, self.media.salt)
    }

    /// Heals the epoch, which says as well whether a repair is under way.
    pub(super) fn epoch(&mut self) -> Result<(), Failed> {
        let (off, salt) = (self.offset(WordKind::Epoch), self.media.salt);
        let valid = |w| EpochWord::decode(w, salt).is_some();
        if self.epoch_word().is_none() && self.heal_word(off, valid)? {
            self.log
                .add(Area::Journal, "the Epoch word of the superblock is healed");
        }
        if self.epoch_word().is_none() {
            self.superblock()?;
        }
        if self.epoch_word().is_some_and(|e| e.repairing) {
            let what = "a repair was interrupted; this one goes on";
            self.log.add(Area::Journal, what);
        }
        Ok(())
    }

    /// All words become those of the copy on the data device, if nothing has happened since that was written. Nothing else says
    /// what epoch and digested_seq were.
    fn superblock(&mut self) -> Result<(), Failed> {
        let Some(page) = superblock(self.volume) else {
            return Ok(());
        };
        // Not drained: without it the next repair finds the same, and stores it again.
        self.media.region.write_nt(self.media.geo.jsb_off, &page);
        let what = "the superblock is written again, from its copy on the data device";
        self.log.add(Area::Journal, what);
        Ok(())
    }

    /// From here on only a repair may write to the volume: what is given up, before it is made
    /// anew, looks like something that never was. So the mark is durable before anything else is
    /// stored. Without a readable epoch the volume cannot be mounted anyway.
    pub(super) fn begin(&mut self) -> Result<(), Failed> {
        match self.epoch_word() {
            Some(e) if !e.repairing => {
                self.store_epoch(EpochWord {
                    repairing: true,
                    ..e
                });
                self.drain()
            }
            _ => Ok(()),
        }
    }

    /// The next mount finds the volume as this repair leaves it. Durable with the next drain.
    pub(super) fn end(&mut self) -> Result<(), Failed> {
        match self.epoch_word() {
            Some(e) if e.repairing => {
                self.drain()?;
                self.store_epoch(EpochWord {
                    repairing: false,
                    ..e
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Sets the epoch word to the epoch of the records that contradict it: a lost store leaves it too
    /// low, and rot that passes its check anything. If it says more than they do, they win only if
    /// there is nothing to replay of the epoch that it says. The mode is not doubted. Whether it did.
    pub(super) fn stray_epoch(&mut self, scan: &Scan) -> Result<bool, Failed> {
        let Some(epoch) = scan.stray_epoch else {
            return Ok(false);
        };
        if epoch < scan.epoch && !scan.records.is_empty() {
            return Ok(false);
        }
        self.begin()?;
        let Some(word) = self.epoch_word() else {
            return Ok(false);
        };
        // Not drained: without it the next repair finds the same records, and stores it again.
        self.store_epoch(EpochWord { epoch, ..word });
        let what = format_args!(
            "the Epoch word of the superblock says {}, records say {epoch}: it is set to that",
            scan.epoch
        );
        self.log.add(Area::Journal, what);
        Ok(true)
    }

    /// Flushed, not drained.
    fn store_epoch(&self, word: EpochWord) {
        let (off, region) = (self.offset(WordKind::Epoch), &self.media.region);
        region.store_u64(off, word.encode(self.media.salt));
        region.flush(off, 8);
    }

    /// Heals words, or computes them again where something else says what they were. The others are
    /// left, and the volume with them.
    pub(super) fn words(&mut self) -> Result<(), Failed> {
        let Some(epoch) = self.epoch_word() else {
            return Ok(());
        };
        let heads = (0..self.media.geo.buffers as u16).map(WordKind::Head);
        let first = [WordKind::Digested, WordKind::Clean];
        let then = [
            WordKind::CommitTs,
            WordKind::Proposal(0),
            WordKind::Proposal(1),
            WordKind::Proposal(2),
            WordKind::Retired,
        ];
        for kind in first.into_iter().chain(heads).chain(then) {
            self.word(kind, epoch)?;
            if kind == WordKind::Digested && self.load(kind).is_none() {
                self.superblock()?;
            }
        }
        Ok(())
    }

    pub(super) fn load(&self, kind: WordKind) -> Option<u64> {
        let raw = self.media.region.load_u64(self.offset(kind));
        SeqWord::decode(raw, kind.salt(self.media.salt))
    }

    fn offset(&self, kind: WordKind) -> u64 {
        self.media.geo.jsb_off + kind.offset()
    }

    fn word(&mut self, kind: WordKind, epoch: EpochWord) -> Result<(), Failed> {
        let raw = self.media.region.load_u64(self.offset(kind));
        let none = matches!(kind, WordKind::Proposal(_)) && raw == 0;
        if none || self.load(kind).is_some() {
            return Ok(());
        }
        let (off, salt) = (self.offset(kind), kind.salt(self.media.salt));
        if self.heal_word(off, |w| SeqWord::decode(w, salt).is_some())? {
            let what = format_args!("the {kind:?} word of the superblock is healed");
            self.log.add(Area::Journal, what);
            return Ok(());
        }
        let value = match kind {
            // It only says whether the mount ended well.
            WordKind::Clean => Some(0),
            // As a proposal it counts only if all of it is there.
            WordKind::CommitTs | WordKind::Proposal(_) => self.committed(epoch),
            WordKind::Head(lane) => self.head(lane, epoch.epoch),
            WordKind::Retired => self.retired(epoch),
            WordKind::Epoch | WordKind::Digested | WordKind::Staged => None,
        };
        if let Some(value) = value {
            self.put(off, SeqWord::encode(value, salt))?;
            let what =
                format_args!("the {kind:?} word of the superblock is computed again: {value}");
            self.log.add(Area::Journal, what);
        }
        Ok(())
    }

    /// Without gaps everything from digested_seq on was committed, or would have been next.
    fn committed(&self, epoch: EpochWord) -> Option<u64> {
        let digested = self.load(WordKind::Digested)?;
        if epoch.mode == Mode::Op {
            return Some(digested);
        }
        let copy = Arc::new(self.media.region.load().ok()?);
        let kind = WordKind::CommitTs;
        let most = SeqWord::encode(MAX_NUMBER - 1, kind.salt(self.media.salt));
        copy.store_u64(self.offset(kind), most);
        // The word retired is not needed for this, and may be damaged as well.
        let kind = WordKind::Retired;
        copy.store_u64(
            self.offset(kind),
            SeqWord::encode(digested, kind.salt(self.media.salt)),
        );
        let scan = Journal::scan(copy, &journal_geometry(&self.media.geo, self.media.salt)).ok()?;
        let mut last = digested;
        for r in &scan.records {
            if r.seq != last + 1 {
                break;
            }
            last = r.seq;
        }
        Some(last)
    }

    /// The first record of this epoch above digested_seq that is in the lane, or where the last one ends.
    fn head(&self, lane: u16, epoch: u32) -> Option<u64> {
        let digested = self.load(WordKind::Digested)?;
        let g = &self.media.geo;
        let base = g.lane_off + u64::from(lane) * g.lane_bytes;
        let mut found: Vec<RecordHeader> = Vec::new();
        let mut b = [0; RECORD_HEADER_BYTES];
        let line = LINE as u64;
        let held = self.media.region.held(base..base + g.lane_bytes);
        let held = held
            .iter()
            .map(|r| (r.start - base) / line * line..r.end - base);
        for at in held.flat_map(|r| r.step_by(LINE)) {
            self.media.region.read(base + at, &mut b);
            let pos = quayfs_layout::bytes::get_u64(&b, 16);
            if pos % g.lane_bytes == at {
                found.extend(RecordHeader::decode(&b, self.media.salt, lane, epoch, pos));
            }
        }
        let above = found
            .iter()
            .filter(|h| h.seq > digested)
            .map(|h| h.pos)
            .min();
        let end = found.iter().map(|h| h.pos + h.total_bytes()).max();
        Some(above.or(end).unwrap_or(0) / LINE as u64)
    }

    /// After a clean unmount all slots are retired, unless some were left staged.
    fn retired(&self, epoch: EpochWord) -> Option<u64> {
        let closed = Closed::of(self.load(WordKind::Clean)?, epoch.epoch);
        self.load(WordKind::Digested)
            .filter(|_| closed == Closed::Empty)
    }
}
