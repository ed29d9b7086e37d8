//! Payloads into slots.

use crate::acquire::Credit;
use crate::error::JournalError;
use crate::journal::{Buffer, Journal};
use quayfs_layout::BLOCK;
use quayfs_layout::checksum::crc32c;
use quayfs_layout::jsb::committed_salt;
use quayfs_layout::record::SlotRun;
use quayfs_layout::slot::{SLOT_HEADER_BYTES, SlotHeader};
use smallvec::SmallVec;
use std::cell::Cell;
use std::marker::PhantomData;

/// Headers that are written together.
const HEADERS: usize = 16;

thread_local! {
    /// Memory for what the next run of this thread names.
    static BLOCKS: Cell<Vec<(u64, u32)>> = const { Cell::new(Vec::new()) };
}

/// More than this is not kept for the next run.
const BLOCKS_KEPT: usize = 512;

/// Proof that payloads and slot headers are written, by this thread: the fence that settles the record settles
/// them. Only staging makes one and only a record consumes it; dropped without one, its slots are abandoned and
/// come back when the ring's head passes them.
#[must_use]
pub struct Staged<'j> {
    pub(crate) journal: &'j Journal,
    pub(crate) run: SlotRun,
    pub(crate) appended: bool,
    /// A fence is for the stores of its thread: stays there.
    pub(crate) _thread: PhantomData<*const ()>,
}

impl Staged<'_> {
    /// What was staged where.
    pub fn run(&self) -> &SlotRun {
        &self.run
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.appended {
            // Stores that are still on their way must not arrive after those of the next owner.
            self.journal.region.fence();
            let n = self.run.blocks.len() as u64;
            self.journal
                .buffer(self.run.buffer)
                .ring
                .abandon(self.run.pos, n);
            self.journal.counters.count_abandoned(n);
        }
        let mut blocks = std::mem::take(&mut self.run.blocks);
        if blocks.capacity() <= BLOCKS_KEPT {
            blocks.clear();
            BLOCKS.set(blocks);
        }
    }
}

impl Journal {
    /// Copies 4 KiB payloads into slots of the credit's buffer, with their headers. Nothing of it is durable on
    /// return: that comes with the fence of the record, in `commit` mode with the drain of the commit. Recovery does
    /// not believe a record before that.
    ///
    /// Panics if a payload is not 4096 bytes or there are more than the credit has slots for.
    ///
    /// # Errors
    /// [`JournalError::Stopped`], [`JournalError::Closed`]: nothing is staged.
    pub fn stage<'j>(
        &'j self,
        credit: &mut Credit<'j>,
        blocks: &[(u64, &[u8])],
    ) -> Result<Staged<'j>, JournalError> {
        self.check()?;
        let n = blocks.len() as u64;
        assert!(
            n <= credit.left.slots && n <= u64::from(u16::MAX),
            "more blocks than credited"
        );
        let _central = self.enter_central();
        let buffer = credit.buffer;
        let Buffer { ring, seed, .. } = self.buffer(buffer);
        // The credit guarantees that the ring's head is far enough: no lock, no check.
        let pos = ring.take(n);
        credit.left.slots -= n;
        // Positions repeat in a later epoch at the earliest, and within an epoch a ring would have
        // to pass 2^32 positions for the low half to repeat, under another position.
        let stage_id = u64::from(self.epoch) << 32 | (pos & u64::from(u32::MAX));
        let mut staged = Staged {
            journal: self,
            run: SlotRun {
                buffer,
                pos,
                stage_id,
                blocks: BLOCKS.take(),
            },
            appended: false,
            _thread: PhantomData,
        };
        let mut headers = SmallVec::<[[u8; SLOT_HEADER_BYTES]; HEADERS]>::new();
        let mut index = ring.index(pos);
        staged.run.blocks.reserve(blocks.len());
        for (p, &(lbn, payload)) in (pos..).zip(blocks) {
            assert_eq!(payload.len(), BLOCK, "a payload is one block");
            self.region
                .write_nt(self.geo.payload(buffer, index), payload);
            let header = SlotHeader {
                pos: p,
                lbn,
                stage_id,
                epoch: self.epoch,
                payload_crc: crc32c(payload),
            };
            let salt = committed_salt(self.geo.volume_salt, buffer, index);
            headers.push(header.encode_seeded(*seed, salt, 0));
            staged.run.blocks.push((lbn, header.payload_crc));
            index += 1;
            let last = index == ring.slots();
            if last || headers.len() == HEADERS {
                self.write_headers(buffer, index, &headers);
                headers.clear();
            }
            if last {
                index = 0;
            }
        }
        self.write_headers(buffer, index, &headers);
        // No fence: the fence of the record's append, by the same thread, settles them. No other thread knows of the
        // slots before that.
        Ok(staged)
    }

    /// Headers of the slots before `end`, which lie side by side; each is a line, which nothing reads before its
    /// committed word is stored.
    fn write_headers(&self, buffer: u16, end: u64, headers: &[[u8; SLOT_HEADER_BYTES]]) {
        if !headers.is_empty() {
            let at = self.geo.header(buffer, end - headers.len() as u64);
            self.region.write_nt(at, headers.as_flattened());
        }
    }
}
