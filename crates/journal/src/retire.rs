//! Slots after digest: which are live, when they are reused, and how to read them.

use crate::credits::Amount;
use crate::error::JournalError;
use crate::journal::Journal;
use crate::{LiveSlot, SlotRef};
use quayfs_layout::BLOCK;
use quayfs_layout::checksum::crc32c;
use quayfs_layout::jsb::{SeqWord, WordKind};
use quayfs_pmem::Bytes;
use std::sync::atomic::Ordering;

/// The `retired_seq` word of the journal superblock, for the transaction that changes it together
/// with the page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetiredWord {
    /// Byte offset in the region, 8-aligned.
    pub offset: u64,
    /// The 8 bytes that are there now: what an undo restores.
    pub old: u64,
    salt: u64,
}

impl RetiredWord {
    /// The 8 bytes that say `seq`.
    pub fn encode(&self, seq: u64) -> u64 {
        SeqWord::encode(seq, self.salt)
    }
}

impl Journal {
    /// The `retired_seq` word as it is now.
    pub fn retired_word(&self) -> RetiredWord {
        let kind = WordKind::Retired;
        let offset = self.jsb().offset(kind);
        let old = self.region.load_u64(offset);
        RetiredWord {
            offset,
            old,
            salt: kind.salt(self.geo.volume_salt),
        }
    }

    /// All live slots at or below `upto`, over all buffers; within a buffer in ring order. Slots at or
    /// below [`Journal::retired`] are dead, whether or not the head could pass them yet: the data
    /// device may have newer content since. `upto` must not exceed [`Journal::complete_upto`], and a round
    /// uses at most digested_seq.
    pub fn live_slots(&self, upto: u64) -> Vec<LiveSlot> {
        let mut live = Vec::new();
        self.find_live_slots(self.retired(), upto, &mut live);
        live
    }

    /// [`Journal::live_slots`] into memory that is there already, and only those of records above `above`, which is
    /// what is retired or more.
    pub fn find_live_slots(&self, above: u64, upto: u64, live: &mut Vec<LiveSlot>) {
        let _no_head_moves = self.retire_lock.lock();
        live.clear();
        for (i, buffer) in self.buffers.iter().enumerate() {
            live.extend(
                buffer
                    .ring
                    .committed(above.max(self.retired()), upto)
                    .map(|c| LiveSlot {
                        buffer: i as u16,
                        pos: c.pos,
                        lbn: c.lbn,
                        crc: c.crc,
                        seq: c.seq,
                    }),
            );
        }
    }

    /// The lowest number among live slots: how far the oldest staged data goes back.
    pub fn oldest_live(&self) -> Option<u64> {
        let _no_head_moves = self.retire_lock.lock();
        let upto = self.complete_upto();
        self.buffers
            .iter()
            .flat_map(|b| b.ring.committed(self.retired(), upto).map(|c| c.seq))
            .min()
    }

    /// Returns slots to use: those at or below `retired`, and abandoned ones, as far as the rings'
    /// order allows. `retired` is what the page-table transaction stored, durably, or the current value to
    /// collect abandoned slots only. The caller has unpublished these slots before; `grace` must
    /// return only when no reader that could still have found one is reading it. Returns how many slots
    /// became free.
    ///
    /// # Errors
    /// [`JournalError::NotRetired`] if the stored word does not cover `retired`.
    pub fn advance_heads(&self, retired: u64, grace: impl FnOnce()) -> Result<u64, JournalError> {
        let _one_at_a_time = self.retire_lock.lock();
        let stored = self.jsb().load(WordKind::Retired)?;
        if stored < retired || retired < self.retired() {
            return Err(JournalError::NotRetired {
                seq: retired,
                stored,
            });
        }
        self.retired.store(retired, Ordering::Release);
        let heads: Vec<u64> = self
            .buffers
            .iter()
            .map(|b| b.ring.passable(retired))
            .collect();
        grace();
        let mut freed = 0;
        for (buffer, to) in self.buffers.iter().zip(heads) {
            let slots = buffer.ring.pass(to);
            if slots > 0 {
                buffer.credits.give(Amount {
                    slots,
                    ..Amount::default()
                });
                freed += slots;
            }
        }
        if freed > 0 {
            self.wake();
        }
        Ok(freed)
    }

    /// Copies the payload of a slot into `buf` (4096 bytes) and verifies it. The caller holds an
    /// epoch pin since before it looked the slot up.
    ///
    /// # Errors
    /// [`JournalError::Payload`] if the checksum fails.
    pub fn read_slot(&self, slot: &SlotRef, buf: &mut [u8]) -> Result<(), JournalError> {
        assert_eq!(buf.len(), BLOCK, "a slot holds one block");
        self.slot_bytes(slot).read(buf);
        if crc32c(buf) != slot.crc {
            return Err(JournalError::Payload {
                buffer: slot.buffer,
                pos: slot.pos,
            });
        }
        Ok(())
    }

    /// The payload of a slot where it lies, not verified. No thread stores there before the slot has been freed, so
    /// the caller is the round that frees it, or holds an epoch pin as with [`Journal::read_slot`].
    pub fn slot_bytes(&self, slot: &SlotRef) -> Bytes<'_> {
        let index = self.buffer(slot.buffer).ring.index(slot.pos);
        self.region
            .bytes(self.geo.payload(slot.buffer, index), BLOCK)
    }
}
