//! Geometry: where every area of the pmem region and of the data device lies.

mod fields;
mod plan;
mod region;
mod resized;
mod sound;

use std::ops::Range;

use crate::node::{BITS_PER_PAGE, INODES_PER_PAGE, NodeKind};
use crate::{BLOCK, LINE};

pub(crate) use fields::FIELDS;
pub use plan::{GeometryError, Wishes};
pub use resized::{Bounds, InUse, NoRoom};

/// Most staging buffers a volume can be formatted with.
pub const BUFFERS_MAX: u32 = 16;

/// Smallest pmem region that `mkfs` accepts.
pub const PMEM_MIN: u64 = 16 << 20;
/// Smallest mirror area.
pub const MIRROR_MIN: u64 = 1 << 20;
/// Smallest data device that `mkfs` accepts.
pub const DATA_MIN: u64 = 16 << 20;

const B: u64 = BLOCK as u64;

/// Where every area of the pmem region and of the data device lies. Offsets and lengths are in
/// bytes unless the name says otherwise; "block" is 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Geometry {
    /// Length of the pmem region.
    pub pmem_len: u64,
    /// Length of the data device, in blocks.
    pub data_blocks: u64,
    /// First block of the data device that belongs to the page table.
    pub data_start: u64,
    /// First block of the mirror area on the data device.
    pub mirror_start: u64,
    /// Length of the mirror area, in blocks.
    pub mirror_blocks: u64,
    /// Number of LBNs, which is the number of physical blocks, the spare pool included.
    pub blocks: u64,
    /// LBNs at the end of the map that no file ever owns; checkpoint rounds borrow them.
    pub spare: u64,
    /// Journal superblock page.
    pub jsb_off: u64,
    /// Page table, 8 bytes an LBN.
    pub l2p_map_off: u64,
    /// Content checksums, 4 bytes an LBN.
    pub l2p_crc_off: u64,
    /// Page-table log.
    pub l2p_log_off: u64,
    /// Bytes of one page-table log lane.
    pub l2p_lane_bytes: u64,
    /// Number of page-table log lanes.
    pub l2p_lanes: u64,
    /// Number of staging buffers.
    pub buffers: u64,
    /// Record lanes.
    pub lane_off: u64,
    /// Bytes of one record lane.
    pub lane_bytes: u64,
    /// Slot headers.
    pub slot_hdr_off: u64,
    /// Block slots.
    pub slot_data_off: u64,
    /// Slots of one staging buffer.
    pub slots_per_buffer: u64,
    /// Node address table, 8 bytes a node id.
    pub nat_off: u64,
    /// Number of node ids.
    pub nat_entries: u64,
    /// Node pages.
    pub node_off: u64,
    /// Number of node pages.
    pub node_pages: u64,
    /// First node id of the intent table.
    pub intent_base: u64,
    /// Node pages of the intent table.
    pub intent_pages: u64,
    /// First node id of the LBN bitmaps.
    pub lbn_bitmap_base: u64,
    /// First node id of the inode bitmaps.
    pub ino_bitmap_base: u64,
    /// First node id of the bitmaps of dynamic node ids.
    pub dyn_bitmap_base: u64,
    /// First node id of the inode table.
    pub inode_base: u64,
    /// First dynamic node id.
    pub dyn_base: u64,
    /// First node id of the quota table; 0 if the volume has none.
    pub quota_base: u64,
    /// Node pages of the quota table; 0 if the volume has none.
    pub quota_pages: u64,
    /// Batch log; 0 if the volume has none.
    pub batch_log_off: u64,
    /// Bytes of the batch log; 0 if the volume has none.
    pub batch_log_bytes: u64,
}

/// What decides where the areas of a volume lie ([`Geometry::lay_out`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Length of the data device, in blocks.
    pub data_blocks: u64,
    /// First block of it that belongs to the page table.
    pub data_start: u64,
    /// Blocks of the mirror area.
    pub mirror_blocks: u64,
    /// LBNs, spare pool included.
    pub blocks: u64,
    /// LBNs that no file ever owns.
    pub spare: u64,
    /// Staging buffers.
    pub buffers: u64,
    /// Bytes of one record lane.
    pub lane_bytes: u64,
    /// Slots of one buffer.
    pub slots_per_buffer: u64,
    /// Entries that one page-table transaction has room for, at least.
    pub l2p_entries: u64,
    /// Node pages.
    pub node_pages: u64,
    /// Node pages of the intent table.
    pub intent_pages: u64,
    /// Node pages of the quota table; 0 for none.
    pub quota_pages: u64,
}

impl Geometry {
    /// Most blocks that one write request may have, so that it is one record and leaves others their slots.
    pub fn request_blocks(&self) -> u64 {
        (self.slots_per_buffer / 4).clamp(2, 257) - 1
    }

    /// Puts one area behind the other, in the order of the format. The region ends with the last node
    /// page. Whether a volume of these sizes is of any use is the caller's concern.
    pub fn lay_out(s: &Sizes) -> Self {
        let mut at = 2 * B;
        let slots = s.slots_per_buffer * s.buffers;
        let l2p_lanes = 4;
        let l2p_lane_bytes = (s.l2p_entries * 32 / l2p_lanes + 2 * B).next_multiple_of(B);
        let intent_base = 1;
        let lbn_bitmap_base = intent_base + s.intent_pages;
        let ino_bitmap_base = lbn_bitmap_base + s.blocks.div_ceil(BITS_PER_PAGE);
        let inodes = s.node_pages * INODES_PER_PAGE;
        let dyn_bitmap_base = ino_bitmap_base + inodes.div_ceil(BITS_PER_PAGE);
        let bitmaps_end = dyn_bitmap_base + s.node_pages.div_ceil(BITS_PER_PAGE);
        let inode_base = bitmaps_end + s.quota_pages;
        let dyn_base = inode_base + s.node_pages;
        let nat_entries = dyn_base + s.node_pages;
        Self {
            data_blocks: s.data_blocks,
            data_start: s.data_start,
            mirror_start: 1,
            mirror_blocks: s.mirror_blocks,
            blocks: s.blocks,
            spare: s.spare,
            // Evaluated in this order, which is that of the areas.
            jsb_off: take(&mut at, B),
            l2p_map_off: take(&mut at, s.blocks * 8),
            l2p_crc_off: take(&mut at, s.blocks * 4),
            l2p_log_off: take(&mut at, B + l2p_lane_bytes * l2p_lanes),
            l2p_lane_bytes,
            l2p_lanes,
            buffers: s.buffers,
            lane_off: take(&mut at, s.lane_bytes * s.buffers),
            lane_bytes: s.lane_bytes,
            slot_hdr_off: take(&mut at, slots * LINE as u64),
            slot_data_off: take(&mut at, slots * B),
            slots_per_buffer: s.slots_per_buffer,
            nat_off: take(&mut at, nat_entries * 8),
            nat_entries,
            node_off: take(&mut at, s.node_pages * B),
            node_pages: s.node_pages,
            intent_base,
            intent_pages: s.intent_pages,
            lbn_bitmap_base,
            ino_bitmap_base,
            dyn_bitmap_base,
            inode_base,
            dyn_base,
            quota_base: if s.quota_pages > 0 { bitmaps_end } else { 0 },
            quota_pages: s.quota_pages,
            batch_log_off: 0,
            batch_log_bytes: 0,
            pmem_len: at,
        }
    }

    /// LBNs that files can own.
    pub fn visible_blocks(&self) -> u64 {
        self.blocks - self.spare
    }

    /// Inode numbers 0 to `inodes() - 1` have a place in the inode table.
    pub fn inodes(&self) -> u64 {
        (self.inode_end() - self.inode_base) * INODES_PER_PAGE
    }

    /// About how many files fit, if they are small: a fifth of the node pages goes to their names.
    pub fn files_about(&self) -> u64 {
        self.inodes() / 5 * 4
    }

    /// Whether the LBN bitmaps have taken node ids from the end of the inode table, because a larger data device needs
    /// more of them than there are in front of the bitmaps of inodes.
    pub fn lbn_bitmaps_moved(&self) -> bool {
        self.lbn_bitmap_base > self.inode_base
    }

    /// Node ids for LBN bitmaps.
    pub fn lbn_bitmaps(&self) -> Range<u64> {
        match self.lbn_bitmaps_moved() {
            false => self.lbn_bitmap_base..self.ino_bitmap_base,
            true => self.lbn_bitmap_base..self.dyn_base,
        }
    }

    /// End of the node ids of the inode table.
    pub fn inode_end(&self) -> u64 {
        match self.lbn_bitmaps_moved() {
            false => self.dyn_base,
            true => self.lbn_bitmap_base,
        }
    }

    /// Number of dynamic node ids.
    pub fn dyn_nodes(&self) -> u64 {
        self.nat_entries - self.dyn_base
    }

    /// Node id and slot of inode `ino` in the inode table.
    pub fn inode_place(&self, ino: u64) -> (u32, usize) {
        let page = self.inode_base + ino / INODES_PER_PAGE;
        (page as u32, (ino % INODES_PER_PAGE) as usize)
    }

    /// Byte offset of the NAT entry of a node id.
    pub fn nat_entry(&self, id: u32) -> u64 {
        self.nat_off + u64::from(id) * 8
    }

    /// Byte offset of a node page.
    pub fn node_page(&self, page: u64) -> u64 {
        self.node_off + page * B
    }

    /// Kind of page of a node id that is fixed, `None` for dynamic ones.
    pub fn static_kind(&self, id: u32) -> Option<NodeKind> {
        let id = u64::from(id);
        if self.lbn_bitmaps().contains(&id) {
            Some(NodeKind::Bitmap)
        } else if id < self.intent_base || id >= self.dyn_base {
            None
        } else if id < self.intent_base + self.intent_pages {
            Some(NodeKind::Intents)
        } else if id < self.ino_bitmap_base {
            // Of LBN bitmaps that have moved.
            None
        } else if id >= self.quota_base && id - self.quota_base < self.quota_pages {
            Some(NodeKind::Quota)
        } else if id < self.inode_base {
            Some(NodeKind::Bitmap)
        } else {
            Some(NodeKind::Inodes)
        }
    }
}

/// Takes the next `len` bytes, rounded up to whole blocks.
fn take(at: &mut u64, len: u64) -> u64 {
    let off = *at;
    *at += len.next_multiple_of(B);
    off
}

#[cfg(test)]
mod tests;
