//! Where the journal's areas lie in the region.

use crate::error::JournalError;
use quayfs_layout::jsb::{JSB_BYTES, MAX_BUFFERS};
use quayfs_layout::record::MAX_RECORD_BYTES;
use quayfs_layout::slot::{COMMITTED_OFFSET, SLOT_HEADER_BYTES};
use quayfs_layout::{BLOCK, LINE};
use quayfs_pmem::SECTOR;
use std::ops::Range;

/// Offsets are bytes from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalGeometry {
    /// Goes into every checksum, so that another volume's bytes never validate.
    pub volume_salt: u64,
    /// The journal superblock page.
    pub jsb_off: u64,
    /// Formatted staging buffers, each with its record lane.
    pub buffers: u32,
    /// First record lane.
    pub lane_off: u64,
    /// Bytes of one lane, a multiple of 64.
    pub lane_bytes: u64,
    /// First slot header.
    pub slot_hdr_off: u64,
    /// Slots of one buffer.
    pub slots_per_buffer: u64,
    /// First block slot, 4 KiB-aligned.
    pub slot_data_off: u64,
}

impl JournalGeometry {
    /// Smallest lane, in bytes.
    pub const MIN_LANE_BYTES: u64 = 4096;

    /// Refuses what cannot work in a region of `len` bytes.
    pub(crate) fn check(&self, len: u64) -> Result<(), JournalError> {
        let fail = |why| Err(JournalError::Geometry(why));
        if self.buffers == 0 || self.buffers as usize > MAX_BUFFERS {
            return fail("number of staging buffers");
        }
        if self.lane_bytes < Self::MIN_LANE_BYTES || !self.lane_bytes.is_multiple_of(LINE as u64) {
            return fail("lane size");
        }
        if self.slots_per_buffer == 0 || self.slots_per_buffer > crate::credits::MAX_SLOTS {
            return fail("slots per buffer");
        }
        let n = u64::from(self.buffers);
        let slots = n * self.slots_per_buffer;
        let areas = [
            (self.jsb_off, Some(JSB_BYTES as u64), LINE),
            (self.lane_off, self.lane_bytes.checked_mul(n), LINE),
            (
                self.slot_hdr_off,
                Some(slots * SLOT_HEADER_BYTES as u64),
                LINE,
            ),
            (self.slot_data_off, Some(slots * BLOCK as u64), BLOCK),
        ];
        for (off, bytes, align) in areas {
            let end = bytes.and_then(|b| off.checked_add(b));
            if !off.is_multiple_of(align as u64) || end.is_none_or(|e| e > len) {
                return fail("an area is misaligned or outside of the region");
            }
        }
        Ok(())
    }

    /// Largest record in a lane, in bytes with header and padding. A quarter of a small lane at most,
    /// so that what one leaves unused at the end of the ring is bounded.
    pub fn max_record_bytes(&self) -> u64 {
        (self.lane_bytes / 4 / LINE as u64 * LINE as u64).min(MAX_RECORD_BYTES as u64)
    }

    pub(crate) fn lane(&self, lane: usize) -> u64 {
        self.lane_off + lane as u64 * self.lane_bytes
    }

    /// What a commit has to make durable: words, records and payloads, in whole sectors.
    pub fn log(&self) -> [Range<u64>; 3] {
        let n = u64::from(self.buffers);
        let sectors =
            |off: u64, len: u64| off / SECTOR * SECTOR..(off + len).next_multiple_of(SECTOR);
        [
            sectors(self.jsb_off, JSB_BYTES as u64),
            sectors(self.lane_off, n * self.lane_bytes),
            sectors(self.slot_data_off, n * self.slots_per_buffer * BLOCK as u64),
        ]
    }

    pub(crate) fn header(&self, buffer: u16, index: u64) -> u64 {
        let slot = u64::from(buffer) * self.slots_per_buffer + index;
        self.slot_hdr_off + slot * SLOT_HEADER_BYTES as u64
    }

    pub(crate) fn committed_word(&self, buffer: u16, index: u64) -> u64 {
        self.header(buffer, index) + COMMITTED_OFFSET
    }

    pub(crate) fn payload(&self, buffer: u16, index: u64) -> u64 {
        let slot = u64::from(buffer) * self.slots_per_buffer + index;
        self.slot_data_off + slot * BLOCK as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn good() -> JournalGeometry {
        JournalGeometry {
            volume_salt: 1,
            jsb_off: 0,
            buffers: 2,
            lane_off: 4096,
            lane_bytes: 8192,
            slot_hdr_off: 20480,
            slots_per_buffer: 32,
            slot_data_off: 24576,
        }
    }

    #[test]
    fn impossible_geometries_are_refused() {
        let len = 24576 + 64 * 4096;
        assert!(good().check(len).is_ok());
        assert!(good().check(len - 1).is_err());
        let bad = [
            JournalGeometry {
                buffers: 0,
                ..good()
            },
            JournalGeometry {
                buffers: 57,
                ..good()
            },
            JournalGeometry {
                lane_bytes: 8200,
                ..good()
            },
            JournalGeometry {
                lane_bytes: 2048,
                ..good()
            },
            JournalGeometry {
                lane_bytes: u64::MAX / 64 * 64,
                ..good()
            },
            JournalGeometry {
                slots_per_buffer: 0,
                ..good()
            },
            JournalGeometry {
                slots_per_buffer: 1 << 24,
                ..good()
            },
            JournalGeometry {
                slot_data_off: 24640,
                ..good()
            },
            JournalGeometry {
                jsb_off: u64::MAX - 63,
                ..good()
            },
        ];
        for g in bad {
            assert!(g.check(len).is_err(), "{g:?}");
        }
    }
}
