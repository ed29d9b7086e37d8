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
use std::marker::PhantomData;

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
                blocks: Vec::with_capacity(blocks.len()),
            },
            appended: false,
            _thread: PhantomData,
        };
        let mut headers = SmallVec::<[[u8; SLOT_HEADER_BYTES]; 4]>::with_capacity(blocks.len());
        let first = ring.index(pos);
        let mut index = first;
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
            index = if index + 1 < ring.slots() {
                index + 1
            } else {
                0
            };
        }
        self.write_headers(buffer, first, headers.as_flattened());
        // No fence: that of the record's append, by the same thread, settles them. Nobody knows of the slots before.
        Ok(staged)
    }

    /// Headers of consecutive positions lie side by side, but for the end of the ring; each is a line, which
    /// nothing reads before its committed word is stored.
    fn write_headers(&self, buffer: u16, index: u64, headers: &[u8]) {
        let room = (self.geo.slots_per_buffer - index) as usize * SLOT_HEADER_BYTES;
        let (first, wrapped) = headers.split_at(room.min(headers.len()));
        for (at, part) in [(index, first), (0, wrapped)] {
            if !part.is_empty() {
                self.region.write_nt(self.geo.header(buffer, at), part);
            }
        }
    }
}
