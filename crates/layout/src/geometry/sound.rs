//! Whether a geometry that was read can be one.

use super::{B, BUFFERS_MAX, Geometry};
use crate::LINE;
use crate::batch::{BATCH_LOG_MAX, BATCH_LOG_MIN};
use crate::l2p::BLOCKS_MAX;
use crate::node::{self, BITS_PER_PAGE, INODES_PER_PAGE};

/// Which of [`Geometry::areas`] holds the block slots.
pub(super) const SLOTS: usize = 7;

impl Geometry {
    /// Whether every area lies inside its medium, none overlaps the next, and no arithmetic on the
    /// fields overflows. A table whose checksum is right but whose geometry is not was made by
    /// hand or by a bug.
    pub fn is_sound(&self) -> bool {
        self.region_is_sound() && self.ids_are_sound() == Some(true) && self.device_is_sound()
    }

    fn region_is_sound(&self) -> bool {
        let Some(mut areas) = self.areas() else {
            return false;
        };
        let line = LINE as u64;
        // mkfs puts them one behind the other; a volume that was resized has some of them elsewhere.
        areas.sort_unstable();
        areas.windows(2).all(|w| w[0].1 <= w[1].0)
            && areas.iter().all(|a| a.0.is_multiple_of(B))
            && areas.last().is_some_and(|a| a.1 <= self.pmem_len)
            && (1..=u64::from(BUFFERS_MAX)).contains(&self.buffers)
            && self.slots_per_buffer > 0
            && self.lane_bytes >= B
            && self.lane_bytes.is_multiple_of(line)
            && (1..=u64::from(u32::MAX)).contains(&self.l2p_lanes)
            && self.l2p_lane_bytes > 0
            && self.l2p_lane_bytes.is_multiple_of(line)
            && self.batch_log_is_sound(areas[areas.len() - 1].1)
            && (1..=node::PAGE_MAX).contains(&self.node_pages)
    }

    /// It lies behind everything else, where there is one.
    fn batch_log_is_sound(&self, behind: u64) -> bool {
        let (off, bytes) = (self.batch_log_off, self.batch_log_bytes);
        let inside = off
            .checked_add(bytes)
            .is_some_and(|end| end <= self.pmem_len);
        let pages = off.is_multiple_of(B) && bytes.is_multiple_of(B);
        (off, bytes) == (0, 0)
            || pages && (BATCH_LOG_MIN..=BATCH_LOG_MAX).contains(&bytes) && off >= behind && inside
    }

    /// The node ids of each kind are enough, and none is of two; `None` on overflow.
    fn ids_are_sound(&self) -> Option<bool> {
        let inode_pages = self.inode_end().checked_sub(self.inode_base)?;
        let dyn_nodes = self.nat_entries.checked_sub(self.dyn_base)?;
        let inodes = inode_pages.checked_mul(INODES_PER_PAGE)?;
        let behind = |base: u64, bits: u64| base.checked_add(bits.div_ceil(BITS_PER_PAGE));
        let intents_end = self.intent_base.checked_add(self.intent_pages)?;
        let lbn_bitmaps = match self.lbn_bitmaps_moved() {
            false => intents_end == self.lbn_bitmap_base,
            true => intents_end <= self.ino_bitmap_base && self.lbn_bitmap_base < self.dyn_base,
        };
        let bitmaps_end = match (self.quota_base, self.quota_pages) {
            // Made before there was a quota table.
            (0, 0) => self.inode_base,
            (base, pages) if pages > 0 && base.checked_add(pages)? == self.inode_base => base,
            _ => return Some(false),
        };
        Some(
            self.intent_base >= 1
                && lbn_bitmaps
                && behind(self.lbn_bitmap_base, self.blocks)? <= self.lbn_bitmaps().end
                && behind(self.ino_bitmap_base, inodes)? <= self.dyn_bitmap_base
                && behind(self.dyn_bitmap_base, dyn_nodes)? == bitmaps_end
                && inode_pages > 0
                && dyn_nodes > 0
                && self.nat_entries <= u64::from(u32::MAX),
        )
    }

    fn device_is_sound(&self) -> bool {
        let ends_by = |start: u64, len: u64, end: u64| {
            start.checked_add(len).is_some_and(|behind| behind <= end)
        };
        self.blocks <= BLOCKS_MAX
            && self.spare < self.blocks
            && self.mirror_start >= 1
            && ends_by(self.mirror_start, self.mirror_blocks, self.data_start)
            && ends_by(self.data_start, self.blocks, self.data_blocks)
    }

    /// Start and end of each area of the pmem region, in the order in which mkfs puts them ([`SLOTS`]); `None` on overflow.
    pub(super) fn areas(&self) -> Option<[(u64, u64); 10]> {
        let end = |off: u64, n: u64, size: u64| off.checked_add(n.checked_mul(size)?);
        let slots = self.slots_per_buffer.checked_mul(self.buffers)?;
        let log = self
            .l2p_lane_bytes
            .checked_mul(self.l2p_lanes)?
            .checked_add(B)?;
        Some([
            (0, 2 * B),
            (self.jsb_off, end(self.jsb_off, 1, B)?),
            (self.l2p_map_off, end(self.l2p_map_off, self.blocks, 8)?),
            (self.l2p_crc_off, end(self.l2p_crc_off, self.blocks, 4)?),
            (self.l2p_log_off, end(self.l2p_log_off, log, 1)?),
            (
                self.lane_off,
                end(self.lane_off, self.lane_bytes, self.buffers)?,
            ),
            (
                self.slot_hdr_off,
                end(self.slot_hdr_off, slots, LINE as u64)?,
            ),
            (self.slot_data_off, end(self.slot_data_off, slots, B)?),
            (self.nat_off, end(self.nat_off, self.nat_entries, 8)?),
            (self.node_off, end(self.node_off, self.node_pages, B)?),
        ])
    }
}
