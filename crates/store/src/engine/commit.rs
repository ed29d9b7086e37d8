//! What becomes durable, and in which order: the data device, then the records that name what is there.

use std::sync::Arc;
use std::time::Duration;

use quayfs_blockdev::BlockDevice;
use quayfs_journal::{JournalError, Waiter};
use quayfs_options::{DataMode, Durability};
use quayfs_sync::atomic::{AtomicBool, Ordering};
use quayfs_sync::time::Instant;

use super::Engine;
use crate::ahead::ReadAhead;
use crate::behind::Behind;
use crate::error::{FsError, Result};
use crate::metrics::Metrics;

/// A write of the data device is given up after so many attempts.
const WRITE_TRIES: u32 = 3;

/// What a commit does first if a record that it covers names blocks that were written directly.
pub(super) fn media(
    behind: &Arc<Behind>,
    device: &Arc<ReadAhead>,
    failed: &Arc<AtomicBool>,
    drain_flushes: bool,
) -> quayfs_journal::Media {
    let (behind, device, failed) = (Arc::clone(behind), Arc::clone(device), Arc::clone(failed));
    Box::new(move || {
        behind.settle(&*device)?;
        match drain_flushes {
            // The drain of the commit flushes the same device.
            true => unless_failed(&failed),
            false => flush_unless_failed(&*device, &failed),
        }
    })
}

/// A flush that has failed once fails for good: what was in the device's cache may be lost, and a later flush that
/// succeeds knows nothing of it.
#[track_caller]
fn flush_unless_failed(device: &dyn BlockDevice, failed: &AtomicBool) -> std::io::Result<()> {
    unless_failed(failed)?;
    (device.flush()).inspect_err(|_| failed.store(true, Ordering::Release))
}

fn unless_failed(failed: &AtomicBool) -> std::io::Result<()> {
    match failed.load(Ordering::Acquire) {
        true => Err(std::io::Error::other(
            "an earlier flush of the data device has failed",
        )),
        false => Ok(()),
    }
}

impl Engine {
    /// Makes everything appended so far durable and returns the sequence number it covers. In
    /// mode `op` there is nothing left to do. With `data=writeback` a power failure may take data that records it
    /// covers have written to the data device directly: see [`Engine::sync`].
    pub fn commit(&self) -> Result<u64> {
        self.commit_with(self.options.data == DataMode::Ordered)
    }

    /// As [`Engine::commit`], on request: what it covers is durable with its data, in every data mode.
    pub fn sync(&self) -> Result<u64> {
        self.commit_with(self.options.data != DataMode::Journal)
    }

    /// As [`Engine::sync`], if that can begin at once. While another commit runs it returns `None` instead, and the
    /// waiter is told when all that was done before this call is durable, or cannot be.
    pub fn sync_or_queue(&self, waiter: impl FnOnce() -> Waiter) -> Option<Result<u64>> {
        let alone = self.options.data == DataMode::Journal && self.node_log.get().is_none();
        if !alone || self.durability == Durability::Op {
            return Some(self.sync());
        }
        Metrics::add(&self.metrics.commits, 1);
        let committed = self.journal.commit_or_queue(waiter)?;
        Some(self.after_commit(committed))
    }

    /// Commits for what [`Engine::sync_or_queue`] has queued, until [`Engine::stop`].
    pub fn serve_commits(&self) {
        self.journal.serve_queue(|committed| {
            // A failure has been reported, and the waiters have been told.
            let _ = self.after_commit(committed);
        });
    }

    fn after_commit(&self, committed: std::result::Result<u64, JournalError>) -> Result<u64> {
        let committed = committed.map_err(|e| {
            self.fail(&e);
            FsError::device(e)
        })?;
        let now = self.began.elapsed().as_millis() as u64;
        self.committed.store(now + 1, Ordering::Relaxed);
        // Now it can be digested.
        self.used();
        Ok(committed)
    }

    /// How long ago the last commit has ended, if there was one since the mount.
    pub fn last_commit(&self) -> Option<Duration> {
        let then = self.committed.load(Ordering::Relaxed).checked_sub(1)?;
        let then = Duration::from_millis(then);
        Some(self.began.elapsed().saturating_sub(then))
    }

    /// A commit. `data`: what was written to the data device directly is made durable first, also that of records
    /// which others have committed before.
    fn commit_with(&self, data: bool) -> Result<u64> {
        if self.durability == Durability::Op {
            return Ok(self.journal.complete_upto());
        }
        // Not `complete_upto`: the number of a record whose operation has returned may lie above one
        // that is still being appended in another lane. The journal waits for that one.
        let cut = self.journal.last_seq();
        let committed = self.journal.commit_ts() >= cut;
        if committed && self.options.read_only {
            return Ok(cut);
        }
        if let Some(log) = self.node_log.get().filter(|_| !committed) {
            let covered = self.journal.last_seq();
            log.write(self, cut)?;
            self.flushed.fetch_max(covered.min(cut), Ordering::AcqRel);
        } else if data {
            // What the records refer to is on the device before they commit.
            self.flush_data(cut)?;
        }
        if committed {
            return Ok(cut);
        }
        Metrics::add(&self.metrics.commits, 1);
        // Where records need nothing else, those that are appended meanwhile are covered as well.
        let upto = (self.options.data != DataMode::Journal || self.node_log.get().is_some())
            .then_some(cut);
        self.after_commit(self.journal.commit(upto))
    }

    /// Makes durable what was written to the data device before. Once that has failed it fails for
    /// good: what was in the device's cache may be lost, and a later flush that succeeds knows
    /// nothing of it.
    pub fn flush_device(&self) -> Result<()> {
        let began = Instant::now();
        flush_unless_failed(&*self.device, &self.flush_failed).map_err(|err| {
            self.fail(&format_args!("flush of the data device: {err}"));
            FsError::device(err)
        })?;
        Metrics::add(&self.metrics.device_flushes, 1);
        let took = began.elapsed().as_micros() as u64;
        Metrics::add(&self.metrics.device_flush_us, took);
        Ok(())
    }

    /// Writes to the data device, some times before it is given up.
    ///
    /// # Errors
    /// That of the last attempt; nothing can be changed any more then.
    pub fn write_device(
        &self,
        write: impl Fn(&dyn BlockDevice) -> std::io::Result<()>,
    ) -> Result<()> {
        let mut tries = 0;
        while let Err(err) = write(&*self.device) {
            tries += 1;
            tracing::warn!("data device: {err}");
            if tries == WRITE_TRIES {
                self.fail(&format_args!("data device: {err}"));
                return Err(FsError::device(err));
            }
        }
        Ok(())
    }

    /// Makes durable what records at or below `upto` have written to the data device directly. One flush serves all
    /// callers that came while another was under way.
    pub fn flush_data(&self, upto: u64) -> Result<()> {
        if self.flushed.load(Ordering::Acquire) >= upto {
            return Ok(());
        }
        let _turn = self.flushing.lock();
        if self.flushed.load(Ordering::Acquire) < upto {
            // A number is taken after the data was written, so this covers what has one.
            let covered = self.journal.last_seq();
            self.flush_device()?;
            self.flushed.fetch_max(covered, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Nothing is left in the log, and no transaction is under way: makes the data device durable and says on the media
    /// that this mount has ended as it should. `staged`: so many blocks are left in the region; `None`: nothing is staged.
    pub fn mark_clean(&self, staged: Option<u64>) -> Result<()> {
        self.flush_device()?;
        self.ppt
            .close_again()
            .map_err(|err| self.table_error(err))?;
        (self.journal.set_clean(staged)).map_err(|err| self.journal_error(err))?;
        self.region.empty_batches().map_err(FsError::from)
    }
}
