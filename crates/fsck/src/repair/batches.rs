//! The heads of the batch log, without which nothing says what counts of it.
//!
//! Batches say which life they are of, and which lap, but not which laps are at home: to put one of those where it belongs
//! would bring older content back. So without a head none is, and what only they had is lost.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use quayfs_fs::recovery::batch_log;
use quayfs_fs::volume::{config_of, locate};
use quayfs_layout::batch::{Batch, HEADS, LogHead, SECTOR, halves};
use quayfs_layout::bytes::get_u64;
use quayfs_layout::jsb::{Closed, EpochWord, WordKind};
use quayfs_pmem::BatchLog;

use super::{Area, Failed, Repair};

/// What is said where one head is written again from the other.
pub(super) const HEAD_AGAIN: &str = "a damaged head of the batch log is written again";

/// Whether one of the two heads is damaged. To open the volume for writing writes it again, and then nothing tells.
pub(super) fn one_is_damaged(dir: &Path) -> bool {
    let intact = || {
        let (place, config) = (locate(dir).ok()?, config_of(dir).ok()?);
        let log = batch_log(&config.geometry, config.salt())?;
        let region = File::open(place.pmem).ok()?;
        let is_intact = |at: u64| {
            let mut b = [0; SECTOR];
            let read = region.read_exact_at(&mut b, log.off + at);
            read.is_ok() && LogHead::decode(&b, log.salt).is_some()
        };
        Some(HEADS.into_iter().filter(|at| is_intact(*at)).count())
    };
    intact() == Some(1)
}

impl Repair<'_> {
    /// A damaged head is written again. Where both are, commits that only the log had are lost: the heads are written when
    /// all the rest is right, so that a repair that goes on after a crash knows of it as well.
    pub(super) fn batch_log(&mut self) -> Result<(), Failed> {
        let Some(log) = batch_log(&self.media.geo, self.media.salt) else {
            return Ok(());
        };
        match self.media.region.intact_batch_heads(&log) {
            0 => self.log.lost_commits = !self.is_all_at_home(&log),
            1 => {
                self.media.region.format_batches(&log)?;
                self.log.add(Area::Journal, HEAD_AGAIN);
            }
            _ => {}
        }
        Ok(())
    }

    /// Begins an empty log where both heads are damaged. Durable when it returns. All that the repair has
    /// stored was durable before the bit that says that it has begun was cleared.
    pub(super) fn batch_heads(&mut self) -> Result<(), Failed> {
        let Some(log) = batch_log(&self.media.geo, self.media.salt) else {
            return Ok(());
        };
        if self.media.region.intact_batch_heads(&log) > 0 {
            return Ok(());
        }
        self.media.region.format_batches(&log)?;
        let lost = match self.log.lost_commits {
            true => "commits that only the log had are lost",
            false => "the last unmount has left nothing in it",
        };
        let what = format_args!("the heads of the batch log are written again; {lost}");
        self.log.add(Area::Journal, what);
        Ok(())
    }

    /// Whether the volume was unmounted by the last life that has written to the log. The first batch of each life lies where
    /// the first half begins, and its batches say which epoch it has begun.
    fn is_all_at_home(&self, log: &BatchLog) -> bool {
        let (Some(epoch), Some(clean)) = (self.epoch_word(), self.load(WordKind::Clean)) else {
            return false;
        };
        if !Closed::of(clean, epoch.epoch).is_clean() {
            return false;
        }
        let read = |half: std::ops::Range<u64>| {
            (self.media.region).read_vec(log.off + half.start, half.end - half.start)
        };
        let halves = halves(log.len).map(read);
        let life = get_u64(&halves[0], 8);
        if Batch::decode(&halves[0], life, log.salt).is_none() {
            return false;
        }
        let begun = halves.iter().flat_map(|half| self.epochs(half, life));
        begun.max() == Some(epoch.epoch)
    }

    /// The epochs in superblocks that batches of a life in a half of the log have.
    fn epochs(&self, half: &[u8], life: u64) -> Vec<u32> {
        let word = self.media.geo.jsb_off + WordKind::Epoch.offset();
        let (mut epochs, mut at) = (Vec::new(), 0);
        while at < half.len() {
            let Some(batch) = Batch::decode(&half[at..], life, self.media.salt) else {
                at += SECTOR;
                continue;
            };
            at += batch.len;
            let words = batch.pieces.iter().filter_map(|(off, bytes)| {
                let at = word.checked_sub(*off)? as usize;
                bytes.get(at..at.checked_add(8)?)?;
                EpochWord::decode(get_u64(bytes, at), self.media.salt)
            });
            epochs.extend(words.map(|word| word.epoch));
        }
        epochs
    }
}
