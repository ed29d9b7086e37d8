//! Geometry: where every area of the pmem region and of the data device lies.

use crate::batch::{BATCH_LOG_MAX, BATCH_LOG_MIN};
use crate::l2p::BLOCKS_MAX;
use crate::node::{self, BITS_PER_PAGE, INODES_PER_PAGE, NodeKind};
use crate::{BLOCK, LINE};

/// Most staging buffers a volume can be formatted with.
pub const BUFFERS_MAX: u32 = 16;

/// Smallest pmem region that `mkfs` accepts.
pub const PMEM_MIN: u64 = 16 << 20;
/// Smallest mirror area.
pub const MIRROR_MIN: u64 = 1 << 20;
/// Smallest data device that `mkfs` accepts.
pub const DATA_MIN: u64 = 16 << 20;

/// Most slots that `mkfs` gives a staging buffer: as many as the journal can count.
const SLOTS_MAX: u64 = (1 << 24) - 64;
/// Most node pages that `mkfs` makes: two node ids each, and some more, fit into 32 bits.
const NODE_PAGES_MAX: u64 = 1 << 30;

const MIB: u64 = 1 << 20;
const B: u64 = BLOCK as u64;

/// Where every area of the pmem region and of the data device lies. Offsets and lengths are in
/// bytes unless the name says otherwise; "block" is 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Geometry {
    /// Length of the pmem region.
    pub pmem_len: u64,
    /// Length of the data device, in blocks.
    pub data_blocks: u64,
    /// First block of the data device that belongs to the L2P map.
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
    /// L2P map, 8 bytes an LBN.
    pub l2p_map_off: u64,
    /// Content checksums, 4 bytes an LBN.
    pub l2p_crc_off: u64,
    /// L2P log.
    pub l2p_log_off: u64,
    /// Bytes of one L2P log lane.
    pub l2p_lane_bytes: u64,
    /// Number of L2P log lanes.
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

/// Numbers that a configuration table keeps of a geometry.
pub(crate) const FIELDS: usize = 34;

/// Why a volume of the wanted size cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The pmem region cannot hold the fixed areas and a useful rest.
    #[error(
        "a pmem region of {have} bytes is too small for this data device: at least {need} bytes are needed"
    )]
    PmemTooSmall {
        /// Bytes given.
        have: u64,
        /// Bytes that would do.
        need: u64,
    },
    /// The data device is too small.
    #[error("a data device of {have} bytes is too small: at least {need} bytes are needed")]
    DataTooSmall {
        /// Bytes given.
        have: u64,
        /// Bytes that would do.
        need: u64,
    },
    /// The data device has more blocks than an L2P entry can address.
    #[error("a data device of {0} bytes is too large: an L2P entry addresses 2^40 blocks")]
    DataTooLarge(u64),
    /// The mirror area does not fit, or is too small to be of use.
    #[error(
        "a mirror area of {have} bytes: between {MIRROR_MIN} and {most}, a quarter of the data device, are possible"
    )]
    Mirror {
        /// What was asked for.
        have: u64,
        /// The most.
        most: u64,
    },
    /// The number of staging buffers is out of range.
    #[error("{0} staging buffers: between 1 and {BUFFERS_MAX} are possible")]
    Buffers(u32),
}

/// What decides where the areas of a volume lie ([`Geometry::lay_out`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Length of the data device, in blocks.
    pub data_blocks: u64,
    /// First block of it that belongs to the L2P map.
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
    /// Entries that one L2P transaction has room for, at least.
    pub l2p_entries: u64,
    /// Node pages.
    pub node_pages: u64,
    /// Node pages of the intent table.
    pub intent_pages: u64,
    /// Node pages of the quota table; 0 for none.
    pub quota_pages: u64,
}

/// Takes the next `len` bytes, rounded up to whole blocks.
fn take(at: &mut u64, len: u64) -> u64 {
    let off = *at;
    *at += len.next_multiple_of(B);
    off
}

/// What of a layout is not left to its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Bytes of the mirror area.
    pub mirror: Option<u64>,
    /// The most bytes that go to staging slots.
    pub staging: Option<u64>,
    /// Bytes of the batch log, at most [`BATCH_LOG_MAX`]; 0 for none.
    pub batch_log: u64,
}

impl Geometry {
    /// Lays out a volume with a mirror area of the usual size: a 128th of the data device, in which two copies of the L2P
    /// map and the checksums take three quarters.
    pub fn compute(pmem_len: u64, data_len: u64, buffers: u32) -> Result<Self, GeometryError> {
        Self::compute_with(pmem_len, data_len, buffers, Wishes::default())
    }

    /// Lays out a volume. Half of what the fixed areas leave goes to staging slots, or as much as is wished, the rest to node
    /// pages.
    ///
    /// # Errors
    /// What does not fit, or is too small to work with.
    pub fn compute_with(
        pmem_len: u64,
        data_len: u64,
        buffers: u32,
        wishes: Wishes,
    ) -> Result<Self, GeometryError> {
        let batch_log = wishes.batch_log.min(BATCH_LOG_MAX) / B * B;
        if batch_log == 0 {
            return Self::compute_without_batches(pmem_len, data_len, buffers, wishes);
        }
        let rest = pmem_len.saturating_sub(batch_log) / B * B;
        let too_small = batch_log < BATCH_LOG_MIN || rest < PMEM_MIN;
        match Self::compute_without_batches(rest, data_len, buffers, wishes) {
            Err(GeometryError::PmemTooSmall { need, .. }) => Err(GeometryError::PmemTooSmall {
                have: pmem_len,
                need: need + batch_log,
            }),
            Ok(_) if too_small => Err(GeometryError::PmemTooSmall {
                have: pmem_len,
                need: PMEM_MIN + batch_log.max(BATCH_LOG_MIN),
            }),
            Ok(geometry) => Ok(Self {
                pmem_len,
                batch_log_off: rest,
                batch_log_bytes: batch_log,
                ..geometry
            }),
            Err(other) => Err(other),
        }
    }

    fn compute_without_batches(
        pmem_len: u64,
        data_len: u64,
        buffers: u32,
        wishes: Wishes,
    ) -> Result<Self, GeometryError> {
        if buffers == 0 || buffers > BUFFERS_MAX {
            return Err(GeometryError::Buffers(buffers));
        }
        if data_len < DATA_MIN {
            return Err(GeometryError::DataTooSmall {
                have: data_len,
                need: DATA_MIN,
            });
        }
        let data_blocks = data_len / B;
        if data_blocks > 1 << 40 {
            return Err(GeometryError::DataTooLarge(data_len));
        }
        let most = data_blocks / 4;
        let mirror_blocks = match wishes.mirror {
            Some(have) if have < MIRROR_MIN || have.div_ceil(B) > most => {
                let most = most * B;
                return Err(GeometryError::Mirror { have, most });
            }
            Some(have) => have.div_ceil(B),
            None => (data_blocks / 128).max(MIRROR_MIN / B),
        };
        let data_start = (1 + mirror_blocks).next_multiple_of(256);
        let blocks = data_blocks - data_start;
        let spare = (blocks / 64).clamp(64, 4096);

        let mut sizes = Sizes {
            data_blocks,
            data_start,
            mirror_blocks,
            blocks,
            spare,
            buffers: u64::from(buffers),
            ..Sizes::default()
        };
        let fixed = Self::lay_out(&sizes).l2p_log_off;
        let too_small = |need| GeometryError::PmemTooSmall {
            have: pmem_len,
            need,
        };
        if pmem_len < PMEM_MIN || pmem_len < fixed + 12 * MIB {
            return Err(too_small(PMEM_MIN.max(fixed + 12 * MIB)));
        }
        let rest = pmem_len - fixed;
        let buffers = sizes.buffers;
        sizes.lane_bytes = (rest / 16 / buffers)
            .clamp(MIB, 16 * MIB / buffers.min(16))
            .next_multiple_of(B);
        let half = (rest - (sizes.lane_bytes * buffers).min(rest / 2)) / 2;
        let staging = wishes.staging.map_or(half, |most| half.min(most));
        // A slot costs its block, its header and room for two undo records of 32 bytes.
        let slots_per_buffer = (staging / buffers / (B + LINE as u64 + 64)).clamp(64, SLOTS_MAX);
        sizes.slots_per_buffer = slots_per_buffer / 64 * 64;
        sizes.l2p_entries = sizes.slots_per_buffer * buffers * 2;
        let at = Self::lay_out(&sizes).nat_off;
        if at + MIB > pmem_len {
            return Err(too_small(at + 4 * MIB));
        }
        // Two node ids (inode table and dynamic) and a little more for each node page.
        sizes.node_pages = ((pmem_len - at) / (B + 16 + 1) - 8).min(NODE_PAGES_MAX);
        sizes.intent_pages = (sizes.node_pages / 64).clamp(2, 4096);
        sizes.quota_pages = (sizes.node_pages / 64).clamp(2, 64);
        let geometry = Self::lay_out(&sizes);
        let node_off = geometry.node_off;
        let node_pages = (sizes.node_pages).min((pmem_len - node_off.min(pmem_len)) / B);
        if node_pages < 64 || node_off + node_pages * B > pmem_len {
            return Err(too_small(node_off + 64 * B + MIB));
        }
        Ok(Self {
            pmem_len,
            node_pages,
            ..geometry
        })
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
        (self.dyn_base - self.inode_base) * INODES_PER_PAGE
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
        if id < self.intent_base || id >= self.dyn_base {
            None
        } else if id < self.lbn_bitmap_base {
            Some(NodeKind::Intents)
        } else if id >= self.quota_base && id - self.quota_base < self.quota_pages {
            Some(NodeKind::Quota)
        } else if id < self.inode_base {
            Some(NodeKind::Bitmap)
        } else {
            Some(NodeKind::Inodes)
        }
    }

    pub(crate) fn fields(&self) -> [u64; FIELDS] {
        [
            self.pmem_len,
            self.data_blocks,
            self.data_start,
            self.mirror_start,
            self.mirror_blocks,
            self.blocks,
            self.spare,
            self.jsb_off,
            self.l2p_map_off,
            self.l2p_crc_off,
            self.l2p_log_off,
            self.l2p_lane_bytes,
            self.l2p_lanes,
            self.buffers,
            self.lane_off,
            self.lane_bytes,
            self.slot_hdr_off,
            self.slot_data_off,
            self.slots_per_buffer,
            self.nat_off,
            self.nat_entries,
            self.node_off,
            self.node_pages,
            self.intent_base,
            self.intent_pages,
            self.lbn_bitmap_base,
            self.ino_bitmap_base,
            self.dyn_bitmap_base,
            self.inode_base,
            self.dyn_base,
            self.quota_base,
            self.quota_pages,
            self.batch_log_off,
            self.batch_log_bytes,
        ]
    }

    pub(crate) fn from_fields(f: &[u64; FIELDS]) -> Self {
        Self {
            pmem_len: f[0],
            data_blocks: f[1],
            data_start: f[2],
            mirror_start: f[3],
            mirror_blocks: f[4],
            blocks: f[5],
            spare: f[6],
            jsb_off: f[7],
            l2p_map_off: f[8],
            l2p_crc_off: f[9],
            l2p_log_off: f[10],
            l2p_lane_bytes: f[11],
            l2p_lanes: f[12],
            buffers: f[13],
            lane_off: f[14],
            lane_bytes: f[15],
            slot_hdr_off: f[16],
            slot_data_off: f[17],
            slots_per_buffer: f[18],
            nat_off: f[19],
            nat_entries: f[20],
            node_off: f[21],
            node_pages: f[22],
            intent_base: f[23],
            intent_pages: f[24],
            lbn_bitmap_base: f[25],
            ino_bitmap_base: f[26],
            dyn_bitmap_base: f[27],
            inode_base: f[28],
            dyn_base: f[29],
            quota_base: f[30],
            quota_pages: f[31],
            batch_log_off: f[32],
            batch_log_bytes: f[33],
        }
    }

    /// Whether every area lies inside its medium, none overlaps the next, and no arithmetic on the
    /// fields overflows. A table whose checksum is right but whose geometry is not was made by
    /// hand or by a bug.
    pub fn is_sound(&self) -> bool {
        self.region_is_sound() && self.ids_are_sound() == Some(true) && self.device_is_sound()
    }

    fn region_is_sound(&self) -> bool {
        let Some(areas) = self.areas() else {
            return false;
        };
        let line = LINE as u64;
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

    /// The node ids, without gaps between the kinds; `None` on overflow.
    fn ids_are_sound(&self) -> Option<bool> {
        let inode_pages = self.dyn_base.checked_sub(self.inode_base)?;
        let dyn_nodes = self.nat_entries.checked_sub(self.dyn_base)?;
        let inodes = inode_pages.checked_mul(INODES_PER_PAGE)?;
        let behind = |base: u64, bits: u64| base.checked_add(bits.div_ceil(BITS_PER_PAGE));
        let bitmaps_end = match (self.quota_base, self.quota_pages) {
            // Made before there was a quota table.
            (0, 0) => self.inode_base,
            (base, pages) if pages > 0 && base.checked_add(pages)? == self.inode_base => base,
            _ => return Some(false),
        };
        Some(
            self.intent_base >= 1
                && self.intent_base.checked_add(self.intent_pages)? == self.lbn_bitmap_base
                && behind(self.lbn_bitmap_base, self.blocks)? == self.ino_bitmap_base
                && behind(self.ino_bitmap_base, inodes)? == self.dyn_bitmap_base
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

    /// Start and end of each area of the pmem region, in order; `None` on overflow.
    fn areas(&self) -> Option<[(u64, u64); 10]> {
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

#[cfg(test)]
#[path = "geometry_tests.rs"]
mod tests;
