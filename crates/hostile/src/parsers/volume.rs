//! Configuration table, geometry, header of the data device.

use quayfs_layout::BLOCK;
use quayfs_layout::bytes::put_u32;
use quayfs_layout::checksum::crc32c;
use quayfs_layout::config::{ConfigTable, DataHeader, LABEL_MAX, OPTIONS_MAX};
use quayfs_layout::geometry::{BUFFERS_MAX, Geometry};
use quayfs_layout::node::BITS_PER_PAGE;

use super::Seen;
use crate::input::{Input, overlay};

fn table(geometry: Geometry) -> ConfigTable {
    ConfigTable {
        uuid: [1; 16],
        data_uuid: [2; 16],
        next_data_uuid: [3; 16],
        compat: [0; 3],
        created: 0,
        label: [0; LABEL_MAX],
        hash_key: [3, 4],
        changes: 5,
        fencing_token: 6,
        options: [0; OPTIONS_MAX],
        geometry,
    }
}

fn usual() -> Geometry {
    Geometry::compute(64 << 20, 256 << 20, 2).expect("an ordinary volume")
}

/// A block made of `valid` and the input, its checksum right or not.
fn block(input: &mut Input<'_>, valid: Vec<u8>) -> Vec<u8> {
    let how = input.u8();
    let mut block = if how & 2 == 0 { valid } else { vec![0; BLOCK] };
    overlay(input, &mut block, 16);
    if how & 1 == 0 {
        let crc = crc32c(&block[..BLOCK - 4]);
        put_u32(&mut block, BLOCK - 4, crc);
    }
    if how & 4 != 0 {
        block.truncate(usize::from(input.u16()) % (BLOCK + 1));
    }
    block
}

/// A configuration table.
pub fn config(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    if let Ok(t) = ConfigTable::decode(&block(&mut input, table(usual()).encode())) {
        seen.add("table");
        assert_eq!(ConfigTable::decode(&t.encode()).as_ref(), Ok(&t));
        let _ = t.salt();
        promises(&t.geometry);
    }
}

/// The header of a data device.
pub fn data_header(data: &[u8], seen: &mut Seen) {
    let valid = DataHeader {
        data_uuid: [2; 16],
        uuid: [1; 16],
        blocks: 1 << 16,
    };
    if let Ok(h) = DataHeader::decode(&block(&mut Input::new(data), valid.encode())) {
        seen.add("header");
        assert_eq!(DataHeader::decode(&h.encode()).as_ref(), Ok(&h));
    }
}

/// Sizes, and fields of a made-up geometry.
pub fn geometry(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    if input.flag() {
        let buffers = u32::from(input.u8());
        if let Ok(g) = Geometry::compute(input.number(), input.number(), buffers) {
            seen.add("computed");
            assert!(g.is_sound(), "{g:?}");
            promises(&g);
        }
        return;
    }
    let mut g = usual();
    for _ in 0..8 {
        if input.is_empty() {
            break;
        }
        let field = field(&mut g, input.u8());
        *field = match input.u8() % 3 {
            0 => input.number(),
            1 => field.wrapping_add_signed(i64::from(input.u8().cast_signed())),
            _ => field.wrapping_add_signed(i64::from(input.u16().cast_signed()) * 64),
        };
    }
    let sound = g.is_sound();
    let decoded = ConfigTable::decode(&table(g).encode());
    assert_eq!(decoded.is_ok(), sound);
    if sound {
        seen.add("made up");
        assert_eq!(decoded.map(|t| t.geometry), Ok(g));
        promises(&g);
    }
}

fn field(g: &mut Geometry, n: u8) -> &mut u64 {
    let fields = [
        &mut g.pmem_len,
        &mut g.data_blocks,
        &mut g.data_start,
        &mut g.mirror_start,
        &mut g.mirror_blocks,
        &mut g.blocks,
        &mut g.spare,
        &mut g.jsb_off,
        &mut g.l2p_map_off,
        &mut g.l2p_crc_off,
        &mut g.l2p_log_off,
        &mut g.l2p_lane_bytes,
        &mut g.l2p_lanes,
        &mut g.buffers,
        &mut g.lane_off,
        &mut g.lane_bytes,
        &mut g.slot_hdr_off,
        &mut g.slot_data_off,
        &mut g.slots_per_buffer,
        &mut g.nat_off,
        &mut g.nat_entries,
        &mut g.node_off,
        &mut g.node_pages,
        &mut g.intent_base,
        &mut g.intent_pages,
        &mut g.lbn_bitmap_base,
        &mut g.ino_bitmap_base,
        &mut g.dyn_bitmap_base,
        &mut g.inode_base,
        &mut g.dyn_base,
        &mut g.quota_base,
        &mut g.quota_pages,
    ];
    let n = usize::from(n) % fields.len();
    fields.into_iter().nth(n).expect("an index of the array")
}

/// What all code relies on once a geometry is called sound, worked out in numbers that cannot
/// overflow.
fn promises(g: &Geometry) {
    const B: u128 = BLOCK as u128;
    let w = u128::from;
    let slots = w(g.buffers) * w(g.slots_per_buffer);
    let areas = [
        ("tables", 0, 2 * B),
        ("superblock", w(g.jsb_off), B),
        ("map", w(g.l2p_map_off), w(g.blocks) * 8),
        ("checksums", w(g.l2p_crc_off), w(g.blocks) * 4),
        (
            "log",
            w(g.l2p_log_off),
            w(g.l2p_lanes) * w(g.l2p_lane_bytes) + B,
        ),
        ("lanes", w(g.lane_off), w(g.buffers) * w(g.lane_bytes)),
        ("headers", w(g.slot_hdr_off), slots * 64),
        ("slots", w(g.slot_data_off), slots * B),
        ("NAT", w(g.nat_off), w(g.nat_entries) * 8),
        ("pages", w(g.node_off), w(g.node_pages) * B),
    ];
    let mut at = 0;
    let mut areas = areas;
    areas.sort_by_key(|(_, off, _)| *off);
    for (name, off, len) in areas {
        assert!(off >= at, "{name} overlaps what is before it: {g:?}");
        assert!(off % B == 0, "{name} is not aligned: {g:?}");
        at = off + len;
    }
    assert!(at <= w(g.pmem_len), "the areas leave the region: {g:?}");
    assert!(w(g.data_start) + w(g.blocks) <= w(g.data_blocks), "{g:?}");
    assert!(w(g.mirror_start) + w(g.mirror_blocks) <= w(g.data_start));
    assert!((1..=u64::from(BUFFERS_MAX)).contains(&g.buffers), "{g:?}");
    assert!(g.l2p_lanes <= u64::from(u32::MAX), "{g:?}");
    assert!(g.nat_entries <= u64::from(u32::MAX), "{g:?}");
    assert!(
        g.visible_blocks() > 0 && g.inodes() > 1 && g.dyn_nodes() > 0,
        "{g:?}"
    );
    let last = g.inodes() - 1;
    assert!(w(last) / 15 + w(g.inode_base) < w(g.inode_end()), "{g:?}");
    assert!(u64::from(g.inode_place(last).0) < g.inode_end(), "{g:?}");
    assert!(g.inode_end() <= g.dyn_base, "{g:?}");
    let bitmaps = g.lbn_bitmaps();
    assert!(
        w(bitmaps.end - bitmaps.start) * w(BITS_PER_PAGE) >= w(g.blocks),
        "{g:?}"
    );
    assert!(w(g.node_page(g.node_pages - 1)) + B <= w(g.pmem_len));
    assert!(g.nat_entry((g.nat_entries - 1) as u32) < g.pmem_len);
}
