//! The page table, staged blocks, and the content of blocks.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

use quayfs_blockdev::ReadRun;
use quayfs_journal::LiveSlot;
use quayfs_layout::checksum::crc32c;
use quayfs_layout::l2p::ENTRY_BYTES;
use quayfs_layout::{BLOCK, Ino, Lbn};
use quayfs_ppt::{BlockState, Ppt};
use quayfs_shown::progress::Unit;
use rangemap::RangeSet;
use rustc_hash::FxHashMap;

use super::damaged::Counting;
use super::media::Media;
use super::owners::Owners;
use super::pages::Pages;
use super::table::Table;
use super::{Area, Check, KEPT, Severity, extents};

/// Blocks read from the device at once.
const BATCH: usize = 1024;

/// Where blocks are and what they hold.
pub(super) struct Blocks<'m> {
    media: &'m Media,
    ppt: Option<Ppt>,
    live: Vec<LiveSlot>,
    /// Newest staged version of each block that has one: index in `live`.
    newest: FxHashMap<Lbn, u32>,
    check_data: bool,
    /// The LBNs in `newest`, in order.
    staged: Vec<Lbn>,
    /// Blocks that have been seen behind the end of a file.
    behind: RangeSet<Lbn>,
    /// Blocks on the device of which only the first bytes may be other than zero.
    tails: Vec<(Lbn, u16)>,
    /// How many of them hold something.
    behind_end: u64,
    /// What is to be reported together with the file it is about: of each area only so much as is listed.
    suspects: Vec<Suspect>,
    /// How much there is of each area, with what is not listed.
    counts: FxHashMap<Area, u64>,
    /// Blocks that have lost what they held.
    lost: Counting,
    /// How often the content of a block was found to be lost.
    lost_findings: u64,
}

struct Suspect {
    severity: Severity,
    area: Area,
    lbn: Lbn,
    what: String,
}

/// A block to be read from the device.
struct Fetch {
    lbn: Lbn,
    pbn: u64,
    crc: u32,
}

impl<'m> Blocks<'m> {
    pub(super) fn load(media: &'m Media, live: Vec<LiveSlot>, c: &mut Check) -> Self {
        // What is wrong with its log has been reported.
        let ppt = media.page_table().map(|(ppt, _)| ppt).ok();
        if ppt.is_none() {
            c.skip("the page table and the content of blocks: its log is damaged");
        }
        let mut newest: FxHashMap<Lbn, u32> = FxHashMap::default();
        for (i, slot) in live.iter().enumerate() {
            let best = newest.entry(slot.lbn).or_insert(i as u32);
            let old = &live[*best as usize];
            if (slot.seq, slot.pos) > (old.seq, old.pos) {
                *best = i as u32;
            }
        }
        c.report.statistics.staged = newest.len() as u64;
        let mut staged: Vec<Lbn> = newest.keys().copied().collect();
        staged.sort_unstable();
        Self {
            media,
            ppt,
            live,
            newest,
            staged,
            behind: RangeSet::new(),
            check_data: c.options.check_data,
            tails: Vec::new(),
            behind_end: 0,
            suspects: Vec::new(),
            counts: FxHashMap::default(),
            lost: Counting::default(),
            lost_findings: 0,
        }
    }

    fn payload(&self, slot: &LiveSlot) -> Vec<u8> {
        let g = &self.media.geo;
        let place = u64::from(slot.buffer) * g.slots_per_buffer + slot.pos % g.slots_per_buffer;
        self.media
            .region
            .read_vec(g.slot_data_off + place * BLOCK as u64, BLOCK as u64)
    }

    fn is_written(&self, lbn: Lbn) -> bool {
        let mapping = self.ppt.as_ref().map(|p| p.lookup(lbn));
        matches!(mapping, Some(Ok(m)) if m.state == BlockState::Written)
    }

    /// Of this block only the first `keep` bytes belong to its file.
    pub(super) fn tail(&mut self, lbn: Lbn, keep: u16) {
        let Some(slot) = self.newest.get(&lbn).map(|i| self.live[*i as usize]) else {
            if self.check_data && self.is_written(lbn) {
                self.tails.push((lbn, keep));
            }
            return;
        };
        let bytes = self.payload(&slot);
        if crc32c(&bytes) == slot.crc {
            self.not_zero(lbn, keep, &bytes);
        }
    }

    /// These blocks lie behind the end of their file. Extents may claim any number of them, and the same ones again
    /// and again: what is staged is looked up among them, and each is looked at once.
    pub(super) fn beyond(&mut self, lbns: Range<Lbn>) {
        if lbns.is_empty() {
            return;
        }
        let fresh: Vec<Range<Lbn>> = self.behind.gaps(&lbns).collect();
        self.behind.insert(lbns);
        for part in fresh {
            if self.check_data {
                part.for_each(|lbn| self.tail(lbn, 0));
                continue;
            }
            let first = self.staged.partition_point(|lbn| *lbn < part.start);
            let end = self.staged.partition_point(|lbn| *lbn < part.end);
            for i in first..end {
                self.tail(self.staged[i], 0);
            }
        }
    }

    fn not_zero(&mut self, lbn: Lbn, keep: u16, bytes: &[u8]) {
        if let Some(n) = bytes[usize::from(keep)..].iter().position(|b| *b != 0) {
            let at = usize::from(keep) + n;
            let what = format_args!(
                "byte {at} of LBN {lbn} lies behind the end of the file and is not zero"
            );
            self.suspect(Severity::Error, Area::Content, lbn, what);
            self.behind_end += 1;
        }
    }

    /// What this block held is lost.
    fn lose(&mut self, area: Area, lbn: Lbn, what: impl Display) {
        self.lost.lose(lbn);
        self.lost_findings += u64::from(matches!(area, Area::Content | Area::Staged));
        self.suspect(Severity::Error, area, lbn, what);
    }

    /// Something is wrong with this block. It is put into words only if it is listed.
    fn suspect(&mut self, severity: Severity, area: Area, lbn: Lbn, what: impl Display) {
        let n = self.counts.entry(area).or_default();
        *n += 1;
        if *n <= KEPT as u64 {
            self.suspects.push(Suspect {
                severity,
                area,
                lbn,
                what: what.to_string(),
            });
        }
    }

    /// Checks everything that does not need the owner of a block.
    pub(super) fn check(&mut self, owners: &Owners, c: &mut Check) {
        c.meter.begin("checking blocks", 0, Unit::Bytes);
        self.slots(owners, c);
        if let Some(ppt) = self.ppt.take() {
            self.map(&ppt, owners, c);
            if self.check_data {
                self.content(&ppt, owners, c);
            }
            self.ppt = Some(ppt);
        }
        let s = &mut c.report.statistics;
        s.blocks = owners.lbns.count();
        s.blocks_total = self.media.geo.visible_blocks();
    }

    /// Every live slot holds what its header says. One that a newer one replaces, or whose block
    /// was freed, matters no more.
    fn slots(&mut self, owners: &Owners, c: &mut Check) {
        let (visible, per_buffer) = (
            self.media.geo.visible_blocks(),
            self.media.geo.slots_per_buffer,
        );
        for i in 0..self.live.len() {
            let slot = self.live[i];
            let (buffer, index, lbn) = (slot.buffer, slot.pos % per_buffer, slot.lbn);
            if lbn >= visible {
                let what = format_args!(
                    "staging buffer {buffer}, slot {index}: LBN {lbn}, but files can own only {visible}"
                );
                c.findings.error(Area::Staged, what);
                continue;
            }
            if crc32c(&self.payload(&slot)) == slot.crc {
                continue;
            }
            let matters = self.newest.get(&lbn) == Some(&(i as u32)) && owners.lbns.has(lbn);
            let what = format_args!(
                "staging buffer {buffer}, slot {index}: the content of LBN {lbn} fails its checksum"
            );
            match matters {
                true => self.lose(Area::Staged, lbn, what),
                false => self.suspect(Severity::Warning, Area::Staged, lbn, what),
            }
        }
    }

    /// The map is a permutation, and nothing has touched the spare pool.
    fn map(&mut self, ppt: &Ppt, owners: &Owners, c: &mut Check) {
        let report = match ppt.verify() {
            Ok(report) => report,
            Err(e) => {
                c.findings.error(Area::PageTable, e);
                return;
            }
        };
        for &lbn in &report.damaged.first {
            let what = format_args!("the entry of LBN {lbn} is damaged");
            self.suspect(Severity::Error, Area::PageTable, lbn, what);
        }
        if report.damaged.count > 0 {
            self.lost_places(ppt, owners);
        }
        // Which of the two the block is, its content says.
        for &lbn in &report.doubly_owned.first {
            let pbn = ppt.lookup(lbn).map_or(0, |m| m.pbn);
            let what =
                format_args!("LBN {lbn}: an earlier LBN has its physical block, {pbn}, as well");
            self.suspect(Severity::Error, Area::PageTable, lbn, what);
        }
        for found in [&report.damaged, &report.doubly_owned] {
            let listed = found.first.len() as u64;
            c.findings.more(found.count - listed);
        }
        // Each of the above leaves a block without an owner; there are no others.
        let explained = report.damaged.count + report.doubly_owned.count;
        if report.unowned.count != explained {
            let what = format_args!("{} physical blocks have no LBN", report.unowned.count);
            c.findings.error(Area::PageTable, what);
        }
        let g = &self.media.geo;
        // What lies in holes is damaged, which has been said.
        let is_written =
            |l: &Lbn| matches!(ppt.lookup(*l), Ok(m) if m.state == BlockState::Written);
        let (off, visible) = (g.l2p_map_off, g.visible_blocks());
        let mut pending = 0;
        for part in self.media.region.held(off..off + g.blocks * ENTRY_BYTES) {
            let part = (part.start - off) / ENTRY_BYTES..(part.end - off).div_ceil(ENTRY_BYTES);
            for lbn in part.start.max(visible)..part.end {
                if is_written(&lbn) {
                    let what = format_args!("LBN {lbn} of the spare pool is not in state zero");
                    c.findings.error(Area::PageTable, what);
                }
            }
            let mut free = (part.start..part.end.min(visible)).filter(|l| !owners.lbns.has(*l));
            pending += free.by_ref().filter(is_written).count() as u64;
        }
        c.report.statistics.blocks_pending = pending;
    }

    /// Blocks of files whose place is not known any more, listed or not. What is staged is not lost with it.
    fn lost_places(&mut self, ppt: &Ppt, owners: &Owners) {
        for lbn in owners.lbns.iter() {
            if ppt.lookup(lbn).is_err() && !self.newest.contains_key(&lbn) {
                self.lost.lose(lbn);
            }
        }
    }

    /// Reads what files have on the device. Blocks with a live slot are left out: a round may have
    /// been writing them.
    fn content(&mut self, ppt: &Ppt, owners: &Owners, c: &mut Check) {
        let tails: FxHashMap<Lbn, u16> = std::mem::take(&mut self.tails).into_iter().collect();
        let mut batch = Vec::with_capacity(BATCH);
        let bytes = owners.lbns.count() * BLOCK as u64;
        c.meter.begin("verifying content", bytes, Unit::Bytes);
        for lbn in owners.lbns.iter() {
            c.meter.add(BLOCK as u64);
            if self.newest.contains_key(&lbn) {
                continue;
            }
            if let Ok(m) = ppt.lookup(lbn)
                && m.state == BlockState::Written
            {
                batch.push(Fetch {
                    lbn,
                    pbn: m.pbn,
                    crc: m.crc,
                });
            }
            if batch.len() == BATCH {
                self.fetch(&mut batch, &tails, c);
            }
        }
        self.fetch(&mut batch, &tails, c);
    }

    fn fetch(&mut self, batch: &mut Vec<Fetch>, tails: &FxHashMap<Lbn, u16>, c: &mut Check) {
        batch.sort_unstable_by_key(|f| f.pbn);
        let start = self.media.geo.data_start;
        for run in batch.chunk_by(|a, b| a.pbn + 1 == b.pbn) {
            let mut buf = vec![0; run.len() * BLOCK];
            let block = start + run[0].pbn;
            let whole = self.media.device.read_many(&mut [ReadRun {
                block,
                buf: &mut buf,
            }]);
            for (f, bytes) in run.iter().zip(buf.chunks_mut(BLOCK)) {
                let (lbn, pbn) = (f.lbn, f.pbn);
                // One block that cannot be read must not hide the others.
                let read = whole
                    .is_err()
                    .then(|| self.media.device.read(start + pbn, bytes));
                if let Some(Err(e)) = read {
                    let what = format_args!("LBN {lbn}, physical block {pbn}: {e}");
                    self.lose(Area::Content, lbn, what);
                    continue;
                }
                c.report.statistics.verified += 1;
                if crc32c(bytes) != f.crc {
                    let what = format_args!("LBN {lbn}, physical block {pbn}: fails its checksum");
                    self.lose(Area::Content, lbn, what);
                } else if let Some(&keep) = tails.get(&lbn) {
                    self.not_zero(lbn, keep, bytes);
                }
            }
        }
        batch.clear();
    }

    /// Reports what is wrong with blocks, each with the file that has it, and the files that have lost something.
    pub(super) fn finish(mut self, pages: &Pages<'_>, table: &Table, c: &mut Check) {
        c.report.behind_end = self.behind_end;
        c.report.lost_findings = self.lost_findings;
        if self.suspects.is_empty() {
            return;
        }
        let mut owners: BTreeMap<Lbn, Option<(Ino, u64)>> =
            self.suspects.iter().map(|s| (s.lbn, None)).collect();
        table.each(pages, |ino, inode| {
            for e in extents::list(pages, ino, inode) {
                self.lost.extent(ino, &(e.lbn..e.lbn + e.len));
                for (lbn, owner) in owners.range_mut(e.lbn..e.lbn + e.len) {
                    *owner = Some((ino, e.file_block + (lbn - e.lbn)));
                }
            }
        });
        for s in self.suspects {
            let whose = match owners.get(&s.lbn).copied().flatten() {
                Some((ino, block)) => format!("inode {ino}, file block {block}"),
                None => "no file has it".to_string(),
            };
            c.findings
                .add(s.severity, s.area, format_args!("{} ({whose})", s.what));
        }
        let unlisted = |n: &u64| n.saturating_sub(KEPT as u64);
        c.findings.more(self.counts.values().map(unlisted).sum());
        c.report.files = self.lost.files(pages, table);
    }
}
