//! Figures for metrics and for deciding when to digest or checkpoint.

use crate::journal::Journal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of rare events; frequent ones are counted under a lock that is held anyway.
#[derive(Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    shared_commits: AtomicU64,
    slot_waits: AtomicU64,
    log_waits: AtomicU64,
    wait_us: AtomicU64,
    lane_waits: AtomicU64,
    central_waits: AtomicU64,
    abandoned: AtomicU64,
}

impl Counters {
    pub(crate) fn count_commit(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn count_shared_commit(&self) {
        self.shared_commits.fetch_add(1, Ordering::Relaxed);
    }
    /// A caller has waited for credits, with slots among them or not.
    pub(crate) fn count_wait(&self, slots: bool, time: Duration) {
        let counter = if slots {
            &self.slot_waits
        } else {
            &self.log_waits
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.wait_us.fetch_add(us, Ordering::Relaxed);
    }
    pub(crate) fn count_lane_wait(&self) {
        self.lane_waits.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn count_central_wait(&self) {
        self.central_waits.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn count_abandoned(&self, n: u64) {
        self.abandoned.fetch_add(n, Ordering::Relaxed);
    }
}

/// A snapshot; the figures are taken one after another, not at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Slots of all buffers in use for new work.
    pub slots: u64,
    /// Slots neither free nor credited to an operation, over the same buffers.
    pub slots_used: u64,
    /// Most used slots of any one buffer.
    pub slots_used_max: u64,
    /// Bytes of log that can be live.
    pub log_bytes: u64,
    /// Bytes of records above digested_seq.
    pub log_bytes_used: u64,
    /// Records that can be live.
    pub log_records: u64,
    /// Records above digested_seq.
    pub log_records_used: u64,
    /// Last sequence number taken.
    pub last_seq: u64,
    /// digested_seq.
    pub digested: u64,
    /// Last durable commit.
    pub commit_ts: u64,
    /// Slots at or below this are free or about to be.
    pub retired: u64,
    /// Records appended since the mount.
    pub appends: u64,
    /// Bytes of those records in their lanes.
    pub append_bytes: u64,
    /// Commits that stored a new `commit_ts`.
    pub commits: u64,
    /// Commit calls that another call had covered when their turn came.
    pub shared_commits: u64,
    /// Times an operation had to wait for slots.
    pub slot_waits: u64,
    /// Times one that needed no slots had to wait for log space.
    pub log_waits: u64,
    /// Microseconds that those waited, all together.
    pub credit_wait_us: u64,
    /// Times that credits changed while a caller took some, so that it had to look again.
    pub credit_retries: u64,
    /// Times an append found the lock of its lane taken.
    pub lane_waits: u64,
    /// Times the lock of central staging was taken.
    pub central_waits: u64,
    /// Slots whose operation failed after staging.
    pub abandoned: u64,
}

impl Journal {
    /// Fill levels and counters.
    pub fn stats(&self) -> JournalStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let mut s = JournalStats {
            last_seq: self.last_seq(),
            digested: self.digested(),
            commit_ts: self.commit_ts(),
            retired: self.retired(),
            commits: get(&self.counters.commits),
            shared_commits: get(&self.counters.shared_commits),
            slot_waits: get(&self.counters.slot_waits),
            log_waits: get(&self.counters.log_waits),
            credit_wait_us: get(&self.counters.wait_us),
            lane_waits: get(&self.counters.lane_waits),
            central_waits: get(&self.counters.central_waits),
            abandoned: get(&self.counters.abandoned),
            ..JournalStats::default()
        };
        for buffer in &self.buffers[..self.active] {
            let used = buffer.ring.used();
            s.slots += buffer.ring.slots();
            s.slots_used += used;
            s.slots_used_max = s.slots_used_max.max(used);
            s.log_bytes += buffer.capacity.lines * quayfs_layout::LINE as u64;
            s.log_records += buffer.capacity.records;
            s.credit_retries += buffer.credits.retries();
            let lane = buffer.lane.lock();
            s.log_records_used += lane.entries.len() as u64;
            s.log_bytes_used += lane.tail - lane.head();
            s.appends += lane.appends;
            s.append_bytes += lane.append_bytes;
        }
        s
    }
}
