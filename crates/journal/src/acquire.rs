//! Credits: room for an operation, acquired before any lock (ordering 6).

use crate::credits::{Amount, MAX_LINES, MAX_RECORDS};
use crate::error::{AcquireError, JournalError};
use crate::journal::{Buffer, Journal};
use crate::queue::WaitQueue;
use quayfs_layout::LINE;
use quayfs_layout::record::{RUN_FIXED_BYTES, RUN_SLOT_BYTES, padded_bytes};
use quayfs_sync::time::Instant;
use std::time::Duration;

/// What an operation may need at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Blocks to be staged.
    pub slots: u32,
    /// Bytes of items; the framing is added here.
    pub record_bytes: u32,
    /// Preferred staging buffer, modulo the number in use.
    pub prefer: usize,
}

impl Need {
    /// Each slot as a run of its own is the worst case.
    fn amount(self) -> Amount {
        let per_slot = RUN_FIXED_BYTES + RUN_SLOT_BYTES.next_multiple_of(8);
        let body = self.record_bytes as usize + self.slots as usize * per_slot;
        Amount {
            slots: u64::from(self.slots),
            lines: (padded_bytes(body) / LINE) as u64,
            records: 1,
        }
    }
}

/// Room in one staging buffer: slots, log space and one record. What is not used returns on drop.
#[must_use]
pub struct Credit<'j> {
    pub(crate) journal: &'j Journal,
    pub(crate) buffer: u16,
    pub(crate) left: Amount,
    pub(crate) dependent: bool,
}

impl Credit<'_> {
    /// The record will refer to what lies elsewhere: on the media of [`Journal::set_media`], or in the region outside
    /// of the log, and not yet drained. A commit that covers it makes that durable first. To be called when all of it
    /// is written.
    pub fn depend_on_media(&mut self) {
        self.dependent = true;
    }

    /// The staging buffer that was chosen.
    pub fn buffer(&self) -> u16 {
        self.buffer
    }

    /// Blocks that can still be staged.
    pub fn slots_left(&self) -> u32 {
        self.left.slots as u32
    }

    /// Bytes that the record may take in the lane, framing included.
    pub fn record_bytes_left(&self) -> u64 {
        self.left.lines * LINE as u64
    }

    /// The lines of a record of so many bytes, if it may take them.
    pub(crate) fn lines_of(&self, bytes: u64) -> Result<u64, JournalError> {
        let lines = bytes / LINE as u64;
        if lines > self.left.lines {
            let credit = self.record_bytes_left();
            return Err(JournalError::RecordTooLarge { bytes, credit });
        }
        Ok(lines)
    }
}

impl Drop for Credit<'_> {
    fn drop(&mut self) {
        if self.left != Amount::default() {
            self.journal.buffer(self.buffer).credits.give(self.left);
            self.journal.wake();
        }
    }
}

impl Buffer {
    /// Log space that can be promised. Records do not wrap, so up to one record less a line is lost
    /// at the end of the ring; with that set aside a credit always finds room.
    pub(crate) fn log_capacity(
        geo: &crate::JournalGeometry,
        log_bytes: u64,
        log_records: u64,
        lanes: usize,
    ) -> Amount {
        let max_record = geo.max_record_bytes();
        let bytes = (geo.lane_bytes - max_record).min((log_bytes / lanes as u64).max(max_record));
        Amount {
            slots: 0,
            lines: (bytes / LINE as u64).min(MAX_LINES),
            records: (log_records / lanes as u64).clamp(1, MAX_RECORDS),
        }
    }
}

impl Journal {
    /// Room for `need`, all or nothing, in the preferred buffer or else the next one that has it.
    /// Never waits. To be called with no lock held and no epoch pinned.
    ///
    /// # Errors
    /// What is short; [`AcquireError::TooLarge`] if waiting is pointless. Also short when others already
    /// wait in [`Journal::acquire_blocking`] and too little would be left for the first of them.
    pub fn acquire(&self, need: Need) -> Result<Credit<'_>, AcquireError> {
        let amount = self.payable(need)?;
        self.try_buffers(amount, self.queue(need).claim(), need.prefer)
    }

    /// As [`Journal::acquire`], but waits up to `limit` for digest or checkpoint to free room. Callers that wait
    /// for slots are served in order of arrival, and so are callers that wait for log space alone.
    ///
    /// # Errors
    /// What was short when the time was up, [`AcquireError::TooLarge`], [`AcquireError::Refused`].
    pub fn acquire_blocking(
        &self,
        need: Need,
        limit: Duration,
    ) -> Result<Credit<'_>, AcquireError> {
        let amount = self.payable(need)?;
        let queue = self.queue(need);
        let mut last = match self.try_buffers(amount, queue.claim(), need.prefer) {
            Err(short @ (AcquireError::Slots | AcquireError::Log)) => short,
            done => return done,
        };
        let began = Instant::now();
        let granted = queue.wait(amount, limit, || {
            match self.try_buffers(amount, Amount::default(), need.prefer) {
                Err(short @ (AcquireError::Slots | AcquireError::Log)) => {
                    last = short;
                    None
                }
                done => Some(done),
            }
        });
        self.counters.count_wait(need.slots > 0, began.elapsed());
        granted.unwrap_or(Err(last))
    }

    /// Where operations wait that need this.
    fn queue(&self, need: Need) -> &WaitQueue {
        if need.slots > 0 {
            &self.slot_waiters
        } else {
            &self.log_waiters
        }
    }

    fn payable(&self, need: Need) -> Result<Amount, AcquireError> {
        let amount = need.amount();
        let fits = amount.lines * LINE as u64 <= self.geo.max_record_bytes();
        // All buffers have the same capacity.
        if !fits || !self.buffers[0].capacity.covers(amount) {
            return Err(AcquireError::TooLarge);
        }
        Ok(amount)
    }

    fn try_buffers(
        &self,
        amount: Amount,
        rest: Amount,
        prefer: usize,
    ) -> Result<Credit<'_>, AcquireError> {
        if self.check().is_err() {
            return Err(AcquireError::Refused);
        }
        let mut enough_slots = false;
        let first = prefer % self.active;
        for at in (first..self.active).chain(0..first) {
            match self.buffers[at].credits.try_take(amount, rest) {
                Ok(()) => {
                    return Ok(Credit {
                        journal: self,
                        buffer: at as u16,
                        left: amount,
                        dependent: false,
                    });
                }
                Err(have) => enough_slots |= have.slots >= amount.slots + rest.slots,
            }
        }
        Err(if enough_slots {
            AcquireError::Log
        } else {
            AcquireError::Slots
        })
    }
}
