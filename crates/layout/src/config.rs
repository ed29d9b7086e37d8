//! Configuration table (two copies at the start of the pmem region), the geometry it describes,
//! and the header of the data device.

use crate::bytes::{get_u32, get_u64, put_u32, put_u64};
use crate::checksum::crc32c;
use crate::node::{self, BITS_PER_PAGE, INODES_PER_PAGE};
use crate::{BLOCK, LINE};

/// First 8 bytes of either copy of the configuration table.
pub const MAGIC: [u8; 8] = *b"QUAYFSPM";
/// First 8 bytes of the data device.
pub const DATA_MAGIC: [u8; 8] = *b"QUAYFSDD";
/// Format version. A different version is refused.
pub const VERSION: u32 = 1;
/// Offsets of the two copies of the configuration table.
pub const COPIES: [u64; 2] = [0, BLOCK as u64];
/// Longest volume label in bytes.
pub const LABEL_MAX: usize = 64;
/// Most staging buffers a volume can be formatted with.
pub const BUFFERS_MAX: u32 = 16;

/// Features that an unaware implementation may ignore.
pub const COMPAT_KNOWN: u64 = 0;
/// Features that an unaware implementation may only read.
pub const RO_COMPAT_KNOWN: u64 = 0;
/// Features that an unaware implementation must refuse.
pub const INCOMPAT_KNOWN: u64 = 0;

/// Smallest pmem region that `mkfs` accepts.
pub const PMEM_MIN: u64 = 16 << 20;
/// Smallest data device that `mkfs` accepts.
pub const DATA_MIN: u64 = 16 << 20;

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
}

const FIELDS: usize = 32;

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
    /// The number of staging buffers is out of range.
    #[error("{0} staging buffers: between 1 and {BUFFERS_MAX} are possible")]
    Buffers(u32),
}

/// Takes the next `len` bytes, rounded up to whole blocks.
fn take(at: &mut u64, len: u64) -> u64 {
    let off = *at;
    *at += len.next_multiple_of(B);
    off
}

impl Geometry {
    /// Lays out a volume. Half of what the fixed areas leave goes to staging slots, half to node
    /// pages.
    pub fn compute(pmem_len: u64, data_len: u64, buffers: u32) -> Result<Self, GeometryError> {
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
        let mirror_blocks = (data_blocks / 128).clamp(256, 262_144);
        let data_start = (1 + mirror_blocks).next_multiple_of(256);
        let blocks = data_blocks - data_start;
        let spare = (blocks / 64).clamp(64, 4096);

        let mut at = 2 * B;
        let jsb_off = take(&mut at, B);
        let l2p_map_off = take(&mut at, blocks * 8);
        let l2p_crc_off = take(&mut at, blocks * 4);
        let fixed = at;
        let too_small = |need| GeometryError::PmemTooSmall {
            have: pmem_len,
            need,
        };
        if pmem_len < PMEM_MIN || pmem_len < fixed + 12 * MIB {
            return Err(too_small(PMEM_MIN.max(fixed + 12 * MIB)));
        }
        let rest = pmem_len - fixed;
        let buffers = u64::from(buffers);
        let lane_bytes = (rest / 16 / buffers)
            .clamp(MIB, 16 * MIB / buffers.min(16))
            .next_multiple_of(B);
        let staging = (rest - (lane_bytes * buffers).min(rest / 2)) / 2;
        // A slot costs its block, its header and room for two undo records of 32 bytes.
        let slots_per_buffer = (staging / buffers / (B + LINE as u64 + 64)).max(64) / 64 * 64;
        let slots = slots_per_buffer * buffers;
        let l2p_lanes = 4;
        let l2p_lane_bytes = (slots * 2 * 32 / l2p_lanes + 2 * B).next_multiple_of(B);

        let l2p_log_off = take(&mut at, B + l2p_lane_bytes * l2p_lanes);
        let lane_off = take(&mut at, lane_bytes * buffers);
        let slot_hdr_off = take(&mut at, slots * LINE as u64);
        let slot_data_off = take(&mut at, slots * B);
        if at + MIB > pmem_len {
            return Err(too_small(at + 4 * MIB));
        }
        // Two node ids (inode table and dynamic) and a little more for each node page.
        let node_pages = (pmem_len - at) / (B + 16 + 1) - 8;
        let intent_pages = (node_pages / 64).clamp(2, 4096);
        let intent_base = 1;
        let lbn_bitmap_base = intent_base + intent_pages;
        let ino_bitmap_base = lbn_bitmap_base + blocks.div_ceil(BITS_PER_PAGE);
        let inodes = node_pages * INODES_PER_PAGE;
        let dyn_bitmap_base = ino_bitmap_base + inodes.div_ceil(BITS_PER_PAGE);
        let inode_base = dyn_bitmap_base + node_pages.div_ceil(BITS_PER_PAGE);
        let dyn_base = inode_base + node_pages;
        let nat_entries = dyn_base + node_pages;
        let nat_off = take(&mut at, nat_entries * 8);
        let node_off = at;
        let node_pages = node_pages.min((pmem_len - node_off.min(pmem_len)) / B);
        if node_pages < 64 || node_off + node_pages * B > pmem_len {
            return Err(too_small(node_off + 64 * B + MIB));
        }
        Ok(Self {
            pmem_len,
            data_blocks,
            data_start,
            mirror_start: 1,
            mirror_blocks,
            blocks,
            spare,
            jsb_off,
            l2p_map_off,
            l2p_crc_off,
            l2p_log_off,
            l2p_lane_bytes,
            l2p_lanes,
            buffers,
            lane_off,
            lane_bytes,
            slot_hdr_off,
            slot_data_off,
            slots_per_buffer,
            nat_off,
            nat_entries,
            node_off,
            node_pages,
            intent_base,
            intent_pages,
            lbn_bitmap_base,
            ino_bitmap_base,
            dyn_bitmap_base,
            inode_base,
            dyn_base,
        })
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

    fn fields(&self) -> [u64; FIELDS] {
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
            0,
            0,
        ]
    }

    fn from_fields(f: &[u64; FIELDS]) -> Self {
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
        }
    }

    /// Whether every area lies inside its medium and none overlaps the next. A table whose
    /// checksum is right but whose geometry is not was made by hand or by a bug.
    pub fn is_sound(&self) -> bool {
        let Some(areas) = self.areas() else {
            return false;
        };
        let in_order = areas.windows(2).all(|w| w[0].1 <= w[1].0);
        let ids_in_order = self.intent_base >= 1
            && self.intent_base + self.intent_pages == self.lbn_bitmap_base
            && self.lbn_bitmap_base + self.blocks.div_ceil(BITS_PER_PAGE) == self.ino_bitmap_base
            && self.inode_base <= self.dyn_base
            && self.dyn_base <= self.nat_entries
            && self.ino_bitmap_base + self.inodes().div_ceil(BITS_PER_PAGE) == self.dyn_bitmap_base
            && self.dyn_bitmap_base + self.dyn_nodes().div_ceil(BITS_PER_PAGE) == self.inode_base
            && self.nat_entries <= u64::from(u32::MAX);
        in_order
            && ids_in_order
            && areas.last().is_some_and(|a| a.1 <= self.pmem_len)
            && self.spare < self.blocks
            && self.mirror_start >= 1
            && self
                .mirror_start
                .checked_add(self.mirror_blocks)
                .is_some_and(|e| e <= self.data_start)
            && self
                .data_start
                .checked_add(self.blocks)
                .is_some_and(|e| e <= self.data_blocks)
            && (1..=u64::from(BUFFERS_MAX)).contains(&self.buffers)
            && self.slots_per_buffer > 0
            && self.lane_bytes >= B
            && self.l2p_lanes > 0
            && self.node_pages <= node::PAGE_MAX
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

/// The configuration table: who the volume is and where its areas lie. It is written by `mkfs`
/// only, so its two copies are equal unless one is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigTable {
    /// Volume UUID.
    pub uuid: [u8; 16],
    /// UUID in the header of the data device that belongs to this region.
    pub data_uuid: [u8; 16],
    /// Feature masks: compatible, read-only compatible, incompatible.
    pub compat: [u64; 3],
    /// Time of `mkfs`, seconds since 1970.
    pub created: u64,
    /// Volume label, UTF-8, padded with zeros.
    pub label: [u8; LABEL_MAX],
    /// Key of the hash that orders directories.
    pub hash_key: [u64; 2],
    /// Areas.
    pub geometry: Geometry,
}

/// Why a configuration table or a data-device header is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The magic number is missing.
    #[error("no QuayFS signature")]
    NotQuayfs,
    /// The format version is not ours.
    #[error("format version {0}, this program knows version {VERSION}")]
    Version(u32),
    /// The checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// The geometry contradicts itself.
    #[error("impossible geometry")]
    Geometry,
}

const OFF_CRC: usize = BLOCK - 4;
const OFF_FIELDS: usize = 256;

impl ConfigTable {
    /// A number that depends on the volume only; part of every checksum, so that structures of
    /// another volume never validate.
    pub fn salt(&self) -> u64 {
        get_u64(&self.uuid, 0) ^ get_u64(&self.uuid, 8).rotate_left(32)
    }

    /// Encodes one copy.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; BLOCK];
        b[..8].copy_from_slice(&MAGIC);
        put_u32(&mut b, 8, VERSION);
        b[16..32].copy_from_slice(&self.uuid);
        b[32..48].copy_from_slice(&self.data_uuid);
        for (i, m) in self.compat.iter().enumerate() {
            put_u64(&mut b, 48 + 8 * i, *m);
        }
        put_u64(&mut b, 72, self.created);
        b[80..80 + LABEL_MAX].copy_from_slice(&self.label);
        put_u64(&mut b, 144, self.hash_key[0]);
        put_u64(&mut b, 152, self.hash_key[1]);
        for (i, f) in self.geometry.fields().iter().enumerate() {
            put_u64(&mut b, OFF_FIELDS + 8 * i, *f);
        }
        let crc = crc32c(&b[..OFF_CRC]);
        put_u32(&mut b, OFF_CRC, crc);
        b
    }

    /// Decodes and checks one copy.
    pub fn decode(b: &[u8]) -> Result<Self, ConfigError> {
        if b.len() < BLOCK || b[..8] != MAGIC {
            return Err(ConfigError::NotQuayfs);
        }
        if crc32c(&b[..OFF_CRC]) != get_u32(b, OFF_CRC) {
            return Err(ConfigError::Checksum);
        }
        let version = get_u32(b, 8);
        if version != VERSION {
            return Err(ConfigError::Version(version));
        }
        let mut fields = [0; FIELDS];
        for (i, f) in fields.iter_mut().enumerate() {
            *f = get_u64(b, OFF_FIELDS + 8 * i);
        }
        let geometry = Geometry::from_fields(&fields);
        if !geometry.is_sound() {
            return Err(ConfigError::Geometry);
        }
        let mut t = Self {
            uuid: [0; 16],
            data_uuid: [0; 16],
            compat: [get_u64(b, 48), get_u64(b, 56), get_u64(b, 64)],
            created: get_u64(b, 72),
            label: [0; LABEL_MAX],
            hash_key: [get_u64(b, 144), get_u64(b, 152)],
            geometry,
        };
        t.uuid.copy_from_slice(&b[16..32]);
        t.data_uuid.copy_from_slice(&b[32..48]);
        t.label.copy_from_slice(&b[80..80 + LABEL_MAX]);
        Ok(t)
    }
}

/// The header in block 0 of the data device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// UUID of this data device.
    pub data_uuid: [u8; 16],
    /// UUID of the volume it belongs to.
    pub uuid: [u8; 16],
    /// Length in blocks at `mkfs`.
    pub blocks: u64,
}

impl DataHeader {
    /// Encodes the header block.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; BLOCK];
        b[..8].copy_from_slice(&DATA_MAGIC);
        put_u32(&mut b, 8, VERSION);
        b[16..32].copy_from_slice(&self.uuid);
        b[32..48].copy_from_slice(&self.data_uuid);
        put_u64(&mut b, 48, self.blocks);
        let crc = crc32c(&b[..OFF_CRC]);
        put_u32(&mut b, OFF_CRC, crc);
        b
    }

    /// Decodes and checks the header block.
    pub fn decode(b: &[u8]) -> Result<Self, ConfigError> {
        if b.len() < BLOCK || b[..8] != DATA_MAGIC {
            return Err(ConfigError::NotQuayfs);
        }
        if crc32c(&b[..OFF_CRC]) != get_u32(b, OFF_CRC) {
            return Err(ConfigError::Checksum);
        }
        let version = get_u32(b, 8);
        if version != VERSION {
            return Err(ConfigError::Version(version));
        }
        let mut h = Self {
            data_uuid: [0; 16],
            uuid: [0; 16],
            blocks: get_u64(b, 48),
        };
        h.uuid.copy_from_slice(&b[16..32]);
        h.data_uuid.copy_from_slice(&b[32..48]);
        Ok(h)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(g: Geometry) -> ConfigTable {
        ConfigTable {
            uuid: [7; 16],
            data_uuid: [9; 16],
            compat: [0; 3],
            created: 1,
            label: [0; LABEL_MAX],
            hash_key: [1, 2],
            geometry: g,
        }
    }

    proptest! {
        #[test]
        fn every_size_is_laid_out_soundly_or_refused(
            pmem in 0u64..(8 << 30), data in 0u64..(64 << 30), buffers in 0u32..20
        ) {
            match Geometry::compute(pmem, data, buffers) {
                Ok(g) => {
                    prop_assert!(g.is_sound(), "{g:?}");
                    let t = table(g);
                    prop_assert_eq!(ConfigTable::decode(&t.encode()), Ok(t));
                }
                Err(GeometryError::PmemTooSmall { have, need }) => {
                    prop_assert!(need > have);
                }
                Err(_) => {}
            }
        }

        #[test]
        fn a_flipped_bit_is_seen(bit in 0usize..BLOCK * 8) {
            let mut b = table(Geometry::compute(64 << 20, 1 << 30, 2).unwrap()).encode();
            b[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(ConfigTable::decode(&b).is_err());
        }
    }

    #[test]
    fn ordinary_setups_fit() {
        for (p, d) in [
            (256, 8 << 10),
            (1 << 10, 8 << 10),
            (16, 16),
            (64, 1 << 10),
            (1 << 10, 12 << 10),
        ] {
            let g = Geometry::compute(p << 20, d << 20, 4).unwrap();
            assert!(g.is_sound());
            assert!(g.node_pages * 4096 > (p << 20) / 5, "{p} {d} {g:?}");
        }
    }
}
