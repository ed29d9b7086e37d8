//! Where the page table lies in the region.

use quayfs_layout::l2p::{
    self, BLOCKS_MAX, COMMIT_AT, CRC_BYTES, ENTRY_BYTES, LOG_HEADER_BYTES, SPARE_AT, START_AT,
    lane_records, log_bytes,
};
use quayfs_layout::{LINE, Lbn};
use quayfs_pmem::Region;

use crate::PptError;

/// Where the page table lies in the pmem region. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PptGeometry {
    /// Goes into every checksum, so that nothing of another volume validates.
    pub volume_salt: u64,
    /// The map, 8 bytes an LBN; a multiple of 64.
    pub l2p_map_off: u64,
    /// The content checksums, 4 bytes an LBN; a multiple of 64.
    pub l2p_crc_off: u64,
    /// Number of LBNs, which is the number of physical blocks.
    pub blocks: u64,
    /// The log: one page, then the lanes; a multiple of 64.
    pub l2p_log_off: u64,
    /// Number of lanes, at least 1.
    pub l2p_log_lanes: u32,
    /// Bytes of one lane, a multiple of 64 and not 0.
    pub l2p_lane_bytes: u64,
}

impl PptGeometry {
    /// The most entries that one transaction can change.
    pub fn capacity(&self) -> u64 {
        u64::from(self.l2p_log_lanes) * lane_records(self.l2p_lane_bytes)
    }

    /// Bytes of the whole log, its header page included.
    pub fn log_bytes(&self) -> u64 {
        log_bytes(self.l2p_log_lanes, self.l2p_lane_bytes)
    }

    /// Checks what every other function of the crate relies on.
    pub(crate) fn check(&self, region: &Region) -> Result<(), PptError> {
        let line = LINE as u64;
        if self.blocks == 0 || self.blocks > BLOCKS_MAX {
            return Err(PptError::Geometry("the number of blocks is out of range"));
        }
        if self.l2p_log_lanes == 0 || self.l2p_lane_bytes == 0 {
            return Err(PptError::Geometry("the log has no room for a record"));
        }
        let offs = [
            self.l2p_map_off,
            self.l2p_crc_off,
            self.l2p_log_off,
            self.l2p_lane_bytes,
        ];
        if offs.iter().any(|off| !off.is_multiple_of(line)) {
            return Err(PptError::Geometry("an area is not aligned to lines"));
        }
        let log = u64::from(self.l2p_log_lanes)
            .checked_mul(self.l2p_lane_bytes)
            .and_then(|lanes| lanes.checked_add(LOG_HEADER_BYTES));
        let mut areas = [
            (self.l2p_map_off, Some(self.blocks * ENTRY_BYTES)),
            (self.l2p_crc_off, Some(self.blocks * CRC_BYTES)),
            (self.l2p_log_off, log),
        ];
        areas.sort_unstable();
        let mut free_from = 0;
        for (off, len) in areas {
            let end = len.and_then(|len| off.checked_add(len));
            match end {
                Some(end) if off >= free_from && end <= region.len() => free_from = end,
                _ => return Err(PptError::Geometry("areas overlap or leave the region")),
            }
        }
        Ok(())
    }

    pub(crate) fn entry_off(&self, lbn: Lbn) -> u64 {
        self.l2p_map_off + lbn * ENTRY_BYTES
    }

    pub(crate) fn crc_off(&self, lbn: Lbn) -> u64 {
        self.l2p_crc_off + lbn * CRC_BYTES
    }

    /// The commit word.
    pub(crate) fn commit_off(&self) -> u64 {
        self.l2p_log_off + COMMIT_AT
    }

    /// The commit word's spare copy.
    pub(crate) fn spare_off(&self) -> u64 {
        self.l2p_log_off + SPARE_AT
    }

    /// The two copies of the start record.
    pub(crate) fn start_offs(&self) -> [u64; 2] {
        START_AT.map(|at| self.l2p_log_off + at)
    }

    /// Undo record `index` of `lane`.
    pub(crate) fn undo_off(&self, lane: u32, index: u64) -> u64 {
        self.l2p_log_off + l2p::lane_off(lane, self.l2p_lane_bytes) + index * l2p::UNDO_BYTES as u64
    }

    /// Whether an aligned word at `off` lies in the region and outside of map, checksums and log:
    /// the only place that a transaction's extra word may be.
    pub(crate) fn word_is_foreign(&self, off: u64, region_len: u64) -> bool {
        let inside = |area: u64, len: u64| off >= area && off - area < len;
        off != 0
            && off.is_multiple_of(8)
            && off < region_len
            && !inside(self.l2p_map_off, self.blocks * ENTRY_BYTES)
            && !inside(self.l2p_crc_off, self.blocks * CRC_BYTES)
            && !inside(self.l2p_log_off, self.log_bytes())
    }
}
