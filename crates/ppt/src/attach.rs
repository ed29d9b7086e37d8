//! Making a new page table, and getting an existing one into a state that may be changed.

use std::sync::Arc;

use quayfs_layout::l2p::{BlockState, CRC_BYTES, ENTRY_BYTES, Entry, OldWord, Start, ZERO_CRC};
use quayfs_layout::{BLOCK, LINE};
use quayfs_pmem::Region;

use crate::area::Area;
use crate::log::Old;
use crate::recover::{Action, Evidence, classify};
use crate::table::Overlay;
use crate::{Damage, Ppt, PptError, PptGeometry};

/// What attaching found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachReport {
    /// Entries restored to what they were before the transaction that a crash interrupted.
    pub undone: u64,
    /// The word outside the map that was restored with them, if that transaction changed one.
    pub restored_word: Option<OldWord>,
    /// Damage in the log. On a region attached for writing it has been repaired.
    pub damage: Option<Damage>,
    /// It is so damaged that attaching for writing would have been refused.
    pub salvaged: bool,
    /// The last generation that is closed now.
    pub generation: u64,
}

/// What the log says about an unfinished transaction.
pub(crate) struct Open {
    pub(crate) evidence: Evidence,
    pub(crate) word: Option<OldWord>,
    pub(crate) old: Vec<Old>,
}

impl Ppt {
    /// Writes a new page table over whatever is there: LBN n owns physical block n, in state zero;
    /// the log is empty. Durable with the next drain. Takes time in proportion to the size.
    ///
    /// # Errors
    /// [`PptError::Geometry`], [`PptError::ReadOnly`].
    pub fn format(region: &Region, geo: &PptGeometry) -> Result<(), PptError> {
        geo.check(region)?;
        if region.is_read_only() {
            return Err(PptError::ReadOnly);
        }
        let per_piece = BLOCK as u64 / ENTRY_BYTES;
        let mut piece = Vec::with_capacity(BLOCK);
        let sums = ZERO_CRC.to_le_bytes().repeat(per_piece as usize);
        let mut lbn = 0;
        while lbn < geo.blocks {
            let off = geo.entry_off(lbn);
            let end = (lbn + per_piece).min(geo.blocks);
            piece.clear();
            for pbn in lbn..end {
                let entry = Entry {
                    pbn,
                    state: BlockState::Zero,
                };
                piece.extend_from_slice(&entry.encode(pbn, geo.volume_salt).to_le_bytes());
            }
            region.write_nt(off, &piece);
            let sums = &sums[..((end - lbn) * CRC_BYTES) as usize];
            region.write_nt(geo.crc_off(lbn), sums);
            lbn = end;
        }
        // The log is cleared: a volume may be made again with the same salt.
        let zeros = [0; BLOCK];
        let log = geo.log_bytes();
        for at in (0..log).step_by(BLOCK) {
            let len = (log - at).min(BLOCK as u64) as usize;
            region.write_nt(geo.l2p_log_off + at, &zeros[..len]);
        }
        let word = quayfs_layout::l2p::encode_commit(0, geo.volume_salt);
        for off in [geo.commit_off(), geo.spare_off()] {
            region.store_u64(off, word);
            region.flush(off, LINE as u64);
        }
        Ok(())
    }

    /// Opens the page table. If a crash interrupted a transaction, its changes are undone; before
    /// it returns, the transaction is closed durably. A second attach finds nothing to do.
    ///
    /// A read-only region is not changed: what would be undone is undone in DRAM only, damage that
    /// would be refused is reported instead, and every change is refused later.
    ///
    /// # Errors
    /// [`PptError::Geometry`]; [`PptError::Log`] if the log does not say what the map should be
    /// (nothing has been changed then); [`PptError::Pmem`] if draining fails.
    pub fn attach(region: Arc<Region>, geo: PptGeometry) -> Result<(Ppt, AttachReport), PptError> {
        geo.check(&region)?;
        let area = Area { region, geo };
        let open = examine(&area);
        let verdict = classify(&open.evidence);
        let mut report = AttachReport {
            damage: verdict.damage,
            salvaged: false,
            ..AttachReport::default()
        };
        let undo = verdict.action == Action::Undo;
        if undo {
            report.undone = open.old.len() as u64;
            report.restored_word = open.word;
        }
        if area.region.is_read_only() {
            report.generation = open.evidence.commit.or(open.evidence.spare).unwrap_or(0);
            // Better a map with the readable records undone than one known to be mixed.
            let mixed = matches!(verdict.damage, Some(Damage::MissingUndo { .. }));
            let overlay = if undo || mixed { open.old } else { Vec::new() };
            let overlay: Overlay = overlay.into_iter().collect();
            return Ok((Ppt::new(area, overlay, report.generation), report));
        }
        if verdict.action == Action::Refuse {
            return Err(PptError::Log(verdict.damage.unwrap_or(Damage::CommitWord)));
        }
        if undo {
            restore(&area, open)?;
        }
        // Closed in any case: records of a generation that was begun, but of which no start
        // record is left, must not meet a transaction of the same number.
        area.close(verdict.close)?;
        report.generation = verdict.close;
        Ok((Ppt::new(area, Overlay::default(), verdict.close), report))
    }
}

/// Reads the log, and the map where the log speaks of it.
pub(crate) fn examine(area: &Area) -> Open {
    let commit = area.read_commit();
    let spare = area.read_spare();
    let start = area.read_start();
    let mut open = Open {
        evidence: Evidence {
            commit,
            spare,
            start: start.map(|s| s.generation),
            records: 0,
            missing: 0,
            touched: false,
        },
        word: None,
        old: Vec::new(),
    };
    // The records of a finished transaction say nothing and are not read.
    let finished = |s: &Start| commit.or(spare).is_some_and(|last| s.generation <= last);
    let Some(start) = start.filter(|s| !finished(s)) else {
        return open;
    };
    let old = area.read_undo(&start);
    let word = start
        .word
        .filter(|w| area.geo.word_is_foreign(w.off, area.region.len()));
    // A record that does not fit this geometry is no record of how to get back.
    let word_lost = start.word != word || !area.fits(&start);
    open.evidence.records = start.records;
    open.evidence.missing = start.records - old.len() as u64 + u64::from(word_lost);
    open.evidence.touched = word_lost
        || word.is_some_and(|w| area.region.load_u64(w.off) != w.value)
        || old.iter().any(|&(lbn, raw)| area.load(lbn) != raw);
    open.word = word;
    open.old = old;
    open
}

/// Puts everything back to what the records say. Durable when it returns.
pub(crate) fn restore(area: &Area, open: Open) -> Result<(), PptError> {
    let mut batch = area.batch();
    for (lbn, raw) in open.old {
        batch.store_crc(lbn, raw.crc);
        batch.store_entry(lbn, raw.entry);
    }
    batch.flush();
    if let Some(word) = open.word {
        area.region.store_u64(word.off, word.value);
        area.region.flush(word.off, 8);
    }
    area.region.drain()?;
    Ok(())
}
