//! The page-table log.

use std::sync::Arc;

use quayfs_fs::recovery::ppt_geometry;
use quayfs_layout::l2p::{COMMIT_AT, SPARE_AT, UNDO_BYTES, Undo, decode_commit, encode_commit};
use quayfs_ppt::Ppt;

use super::{Area, Failed, Repair};
use crate::logs::{L2pLog, undo_at, undo_places};

impl Repair<'_> {
    /// Ends with no transaction open and both words sound. A log without damage is left alone.
    pub(super) fn l2p_log(&mut self) -> Result<(), Failed> {
        let (off, salt) = (self.media.geo.l2p_log_off, self.media.salt);
        let mut log = L2pLog::read(&self.media);
        if log.commit.is_none()
            && self.heal_word(off + COMMIT_AT, |w| decode_commit(w, salt).is_some())?
        {
            self.log
                .add(Area::PageTable, "the log's commit word is healed");
            log = L2pLog::read(&self.media);
        }
        if let Some(start) = log.open() {
            let mut healed = 0;
            for place in undo_places(&self.media, &start) {
                let (at, lane, index) = place;
                if undo_at(&self.media, place, start.generation).is_some() {
                    continue;
                }
                let valid = |b: &[u8]| {
                    let b = b.first_chunk::<UNDO_BYTES>();
                    let undo = b.and_then(|b| Undo::decode(b, lane, index, salt));
                    undo.is_some_and(|u| u.generation == start.generation)
                };
                healed += u64::from(self.heal_bytes(at, UNDO_BYTES as u64, valid)?);
            }
            if healed > 0 {
                let what = format_args!("{healed} undo records of the log are healed");
                self.log.add(Area::PageTable, what);
            }
        }
        let sound = matches!((log.commit, log.spare), (Some(c), Some(s)) if s <= c);
        if sound && log.open().is_none() {
            return Ok(());
        }
        self.begin()?;
        let region = Arc::clone(&self.media.region);
        let (_, report) = Ppt::salvage(region, ppt_geometry(&self.media.geo, salt))?;
        // A word that is ahead would stay.
        self.put(off + SPARE_AT, encode_commit(report.generation, salt))?;
        if report.undone > 0 {
            let what = format_args!(
                "a round was interrupted: {} entries are undone, their blocks are still staged",
                report.undone
            );
            self.log.add(Area::PageTable, what);
        }
        let what = match report.damage {
            Some(d) => format!("the log is closed ({d})"),
            None => "the log is closed".into(),
        };
        self.log.add(Area::PageTable, what);
        Ok(())
    }
}
