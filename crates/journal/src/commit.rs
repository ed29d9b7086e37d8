//! Commit cuts (`commit` mode).

use crate::Durability;
use crate::error::JournalError;
use crate::journal::Journal;
use quayfs_layout::jsb::WordKind;
use std::sync::atomic::Ordering;

impl Journal {
    /// Makes every record at or below `upto` durable; `None` means all that were appended before this
    /// call. The cut is exactly there: what is above may refer to data that the caller has not made
    /// durable yet. Returns a number at or below which all is committed, more than asked for if
    /// others have committed. In `op` there is nothing to do.
    ///
    /// One commit runs at a time; who finds on its turn that another has covered him returns at once.
    ///
    /// # Errors
    /// [`JournalError::Stopped`], or [`JournalError::Pmem`] if the region cannot be drained.
    pub fn commit(&self, upto: Option<u64>) -> Result<u64, JournalError> {
        if self.durability == Durability::Op {
            return Ok(self.complete_upto());
        }
        let last = self.bounds.last_taken();
        let want = upto.map_or(last, |n| n.min(last));
        let done = self.commit_ts.load(Ordering::Acquire);
        if done >= want {
            return Ok(done);
        }
        let _one_at_a_time = self.commit_lock.lock();
        let done = self.commit_ts.load(Ordering::Acquire);
        if done >= want {
            self.counters.count_shared_commit();
            return Ok(done);
        }
        self.check()?;
        // One number in one order: it cannot separate an operation from what it depends on.
        let cut = want;
        // Ordering 3: counter first, then bounds. Whoever took a number at or below the cut holds his
        // lane's lock until the append is finished, so taking the lock waits without spinning.
        let waited_for = self.bounds.appending_upto(cut);
        for lane in waited_for.filter(|_| !quayfs_sync::planted("commit waits for nobody")) {
            drop(self.buffers[lane].lane.lock());
        }
        // Records and slots at or below the cut are settled before the number that vouches for them.
        self.drain()?;
        self.jsb().store(WordKind::CommitTs, cut);
        self.drain()?;
        // Ordering 8: visible, to digest and to `fsync`, only when persistent.
        self.commit_ts.store(cut, Ordering::Release);
        self.counters.count_commit();
        Ok(cut)
    }

    /// The last durable commit; in `op` what it was when the volume was recovered.
    pub fn commit_ts(&self) -> u64 {
        self.commit_ts.load(Ordering::Acquire)
    }
}
