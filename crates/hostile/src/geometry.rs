//! temporary
use quayfs_layout::geometry::Geometry;
use quayfs_layout::node::{BITS_PER_PAGE, INODES_PER_PAGE};
use quayfs_layout::{BLOCK, LINE};
const B: u64 = BLOCK as u64;
pub fn tiny() -> Geometry {
    let (blocks, spare, buffers, per, lane, l2p_entries, nodes) =
        (512u64, 16, 2u64, 32u64, 160u64 << 10, 128u64, 144u64);
    let mut at = 0;
    let mut take = |len: u64| {
        let off = at;
        at += len.next_multiple_of(B);
        off
    };
    let l2p_lanes = 4;
    let l2p_lane_bytes = (l2p_entries * 32 / l2p_lanes + 2 * B).next_multiple_of(B);
    let slots = per * buffers;
    take(2 * B);
    let jsb_off = take(B);
    let l2p_map_off = take(blocks * 8);
    let l2p_crc_off = take(blocks * 4);
    let l2p_log_off = take(B + l2p_lane_bytes * l2p_lanes);
    let lane_off = take(lane * buffers);
    let slot_hdr_off = take(slots * LINE as u64);
    let slot_data_off = take(slots * B);
    let intent_base = 1;
    let intent_pages = 2;
    let lbn_bitmap_base = intent_base + intent_pages;
    let ino_bitmap_base = lbn_bitmap_base + blocks.div_ceil(BITS_PER_PAGE);
    let inodes = nodes * INODES_PER_PAGE;
    let dyn_bitmap_base = ino_bitmap_base + inodes.div_ceil(BITS_PER_PAGE);
    let inode_base = dyn_bitmap_base + nodes.div_ceil(BITS_PER_PAGE);
    let dyn_base = inode_base + nodes;
    let nat_entries = dyn_base + nodes;
    let nat_off = take(nat_entries * 8);
    let node_off = take(nodes * B);
    Geometry {
        pmem_len: at,
        data_blocks: 8 + blocks,
        data_start: 8,
        mirror_start: 1,
        mirror_blocks: 7,
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
        lane_bytes: lane,
        slot_hdr_off,
        slot_data_off,
        slots_per_buffer: per,
        nat_off,
        nat_entries,
        node_off,
        node_pages: nodes,
        intent_base,
        intent_pages,
        lbn_bitmap_base,
        ino_bitmap_base,
        dyn_bitmap_base,
        inode_base,
        dyn_base,
    }
}
