//! What [`Ppt::attach`] refuses to decide: a map whose log is damaged beyond one fault.

use std::sync::Arc;

use quayfs_layout::checksum::WORD_MAX;
use quayfs_layout::l2p::{UNDO_BYTES, Undo, lane_records};
use quayfs_pmem::Region;

use crate::area::Area;
use crate::attach::{Open, examine, restore};
use crate::{AttachReport, Ppt, PptError, PptGeometry};

impl Ppt {
    /// Attaches whatever the log says, and closes it. Where [`Ppt::attach`] refuses, the best guess is
    /// made: a transaction of which every change is in the map has been finished or might as well have
    /// been; of any other, what has a readable record is undone, together with the extra word. The map
    /// may be no permutation afterwards ([`Ppt::verify`]). Both steps store what the next attempt
    /// would store again, so a crash in between does no harm.
    ///
    /// # Errors
    /// As [`Ppt::attach`], but for [`PptError::Log`].
    pub fn salvage(region: Arc<Region>, geo: PptGeometry) -> Result<(Ppt, AttachReport), PptError> {
        let damage = match Self::attach(Arc::clone(&region), geo) {
            Err(PptError::Log(damage)) => damage,
            other => return other,
        };
        let area = Area { region, geo };
        let open = examine(&area);
        let seen = [
            open.evidence.commit,
            open.evidence.spare,
            open.evidence.start,
        ];
        let last = seen.into_iter().flatten().max().unwrap_or(0);
        let close = last
            .max(highest_undo(&area))
            .saturating_add(2)
            .min(WORD_MAX);
        let mut report = AttachReport {
            damage: Some(damage),
            salvaged: true,
            generation: close,
            ..AttachReport::default()
        };
        if !is_complete(&area, &open) {
            report.undone = open.old.len() as u64;
            report.restored_word = open.word;
            restore(&area, open)?;
        }
        area.close(close)?;
        Ok((Ppt::new(area, Default::default(), close), report))
    }
}

/// Whether every change of a transaction that may have been finished is in the map.
fn is_complete(area: &Area, open: &Open) -> bool {
    let e = &open.evidence;
    // The commit word says that it was not.
    let unfinished = matches!((e.commit, e.start), (Some(g), Some(start)) if start == g + 1);
    !unfinished
        && e.missing == 0
        && open.old.iter().all(|&(lbn, raw)| area.load(lbn) != raw)
        && open
            .word
            .is_none_or(|w| area.region.load_u64(w.off) != w.value)
}

/// The highest generation of any undo record in the log: records of that number must not meet a
/// later transaction that has it as well.
fn highest_undo(area: &Area) -> u64 {
    let mut highest = 0;
    let mut bytes = [0; UNDO_BYTES];
    for lane in 0..area.geo.l2p_log_lanes {
        for index in 0..lane_records(area.geo.l2p_lane_bytes) {
            area.region.read(area.geo.undo_off(lane, index), &mut bytes);
            if let Some(undo) = Undo::decode(&bytes, lane, index, area.geo.volume_salt) {
                highest = highest.max(undo.generation);
            }
        }
    }
    highest
}
