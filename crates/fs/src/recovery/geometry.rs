//! What journal, batch log and page table have of a volume.

use std::ops::Range;

use quayfs_journal::JournalGeometry;
use quayfs_layout::BLOCK;
use quayfs_layout::geometry::Geometry;
use quayfs_pmem::BatchLog;
use quayfs_ppt::PptGeometry;

/// The journal's part of a geometry.
pub fn journal_geometry(g: &Geometry, salt: u64) -> JournalGeometry {
    JournalGeometry {
        volume_salt: salt,
        jsb_off: g.jsb_off,
        buffers: g.buffers as u32,
        lane_off: g.lane_off,
        lane_bytes: g.lane_bytes,
        slot_hdr_off: g.slot_hdr_off,
        slots_per_buffer: g.slots_per_buffer,
        slot_data_off: g.slot_data_off,
    }
}

/// The batch log's part of a geometry, if there is one: what commits write goes there first.
pub fn batch_log(g: &Geometry, salt: u64) -> Option<BatchLog> {
    let whole = |range: Range<u64>| range.start..range.end.next_multiple_of(BLOCK as u64);
    (g.batch_log_bytes > 0).then(|| {
        let mut logged = journal_geometry(g, salt).log().map(whole);
        logged.sort_unstable_by_key(|range| range.start);
        BatchLog {
            off: g.batch_log_off,
            len: g.batch_log_bytes,
            salt,
            logged: logged.into(),
        }
    })
}

/// The page table's part of a geometry.
pub fn ppt_geometry(g: &Geometry, salt: u64) -> PptGeometry {
    PptGeometry {
        volume_salt: salt,
        l2p_map_off: g.l2p_map_off,
        l2p_crc_off: g.l2p_crc_off,
        blocks: g.blocks,
        l2p_log_off: g.l2p_log_off,
        l2p_log_lanes: g.l2p_lanes as u32,
        l2p_lane_bytes: g.l2p_lane_bytes,
    }
}
