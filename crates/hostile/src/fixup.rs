//! Checksums made right again after a forgery.
//!
//! `quayfs-layout` computes most checksums only together with the structure; these functions do it
//! over bytes that may be no structure at all.

use quayfs_layout::LINE;
use quayfs_layout::bytes::{get_u32, get_u64, put_u32};
use quayfs_layout::jsb::MAX_NUMBER;
use quayfs_layout::l2p::{OldWord, START_BYTES, Start, UNDO_BYTES, Undo};
use quayfs_layout::slot::SlotHeader;

/// The salt of the map's entry of an LBN.
pub fn l2p_entry_salt(salt: u64, lbn: u64) -> u64 {
    salt ^ (0x4c_3245 << 40) ^ lbn
}

/// The salt of a node's entry in the node address table.
pub fn nat_salt(salt: u64, id: u32) -> u64 {
    salt ^ 0x4e41_5400_0000_0000 ^ u64::from(id)
}

/// A slot header and its committed word.
pub fn slot_header(b: &mut [u8; LINE], salt: u64, buffer: u16, index: u64) {
    let h = SlotHeader {
        pos: get_u64(b, 0),
        lbn: get_u64(b, 8),
        stage_id: get_u64(b, 16),
        epoch: get_u32(b, 24),
        payload_crc: get_u32(b, 28),
    };
    *b = h.encode_committed(salt, buffer, index, get_u64(b, 56) & MAX_NUMBER);
}

/// An undo record.
pub fn undo(b: &mut [u8; UNDO_BYTES], salt: u64, lane: u32, index: u64) {
    let u = Undo {
        generation: get_u64(b, 16),
        lbn: get_u64(b, 8),
        entry: get_u64(b, 0),
        crc: get_u32(b, 24),
    };
    *b = u.encode(lane, index, salt);
}

/// A start record, its magic number included.
pub fn start(b: &mut [u8; START_BYTES], salt: u64) {
    let s = Start {
        generation: get_u64(b, 8),
        records: get_u64(b, 16),
        per_lane: get_u64(b, 24),
        word: Some(OldWord {
            off: get_u64(b, 32),
            value: get_u64(b, 40),
        }),
    };
    *b = s.encode(salt);
}

/// A record's header, and the checksum of its body as far as `b` goes.
pub fn record(b: &mut [u8], salt: u64) {
    use quayfs_layout::record::{RECORD_HEADER_BYTES, body_crc};
    let len = get_u32(b, 24) as usize;
    let end = (RECORD_HEADER_BYTES + len).min(b.len());
    let crc = body_crc(&b[RECORD_HEADER_BYTES..end], salt);
    put_u32(b, 28, crc);
    let crc = body_crc(&b[..60], salt);
    put_u32(b, 60, crc);
}
