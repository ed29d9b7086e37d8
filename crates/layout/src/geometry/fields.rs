//! A geometry as the numbers that a configuration table keeps of it.

use super::Geometry;

/// Numbers that a configuration table keeps of a geometry.
pub(crate) const FIELDS: usize = 34;

impl Geometry {
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

    /// All numbers, with the names that docs/internals/format.md gives them.
    pub fn named(&self) -> [(&'static str, u64); FIELDS] {
        const NAMES: [&str; FIELDS] = [
            "pmem_len",
            "data_blocks",
            "data_start",
            "mirror_start",
            "mirror_blocks",
            "blocks",
            "spare",
            "jsb_off",
            "l2p_map_off",
            "l2p_crc_off",
            "l2p_log_off",
            "l2p_lane_bytes",
            "l2p_lanes",
            "buffers",
            "lane_off",
            "lane_bytes",
            "slot_hdr_off",
            "slot_data_off",
            "slots_per_buffer",
            "nat_off",
            "nat_entries",
            "node_off",
            "node_pages",
            "intent_base",
            "intent_pages",
            "lbn_bitmap_base",
            "ino_bitmap_base",
            "dyn_bitmap_base",
            "inode_base",
            "dyn_base",
            "quota_base",
            "quota_pages",
            "batch_log_off",
            "batch_log_bytes",
        ];
        let fields = self.fields();
        std::array::from_fn(|i| (NAMES[i], fields[i]))
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
}
