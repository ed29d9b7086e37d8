//! Superblock words, slot headers, records and their items.

use quayfs_layout::backup;
use quayfs_layout::batch::{self, Batch, BatchId, LogHead};
use quayfs_layout::bytes::{get_u16, get_u32, get_u64, put_u32, put_u64};
use quayfs_layout::checksum::{crc32c, crc32c_append};
use quayfs_layout::item::{self, Item};
use quayfs_layout::jsb::{
    EpochWord, JSB_BYTES, MAX_NUMBER, PROPOSALS, SeqWord, WordKind, committed_salt,
};
use quayfs_layout::node::{self, BITS_PER_PAGE, NodeKind};
use quayfs_layout::record::{self, MAX_RECORD_BYTES, RecordHeader, RecordKind, SlotRun};
use quayfs_layout::slot::{self, SlotHeader};
use quayfs_layout::{BLOCK, LINE, quota};

use super::Seen;
use crate::fixup;
use crate::input::{Input, overlay};

/// Words of the journal superblock.
pub fn superblock(data: &[u8], seen: &mut Seen) {
    batches(data, seen);
    superblock_copy(data, seen);
    let mut input = Input::new(data);
    let salt = input.u64();
    let fix = input.flag();
    let kind = match input.u8() % 8 {
        0 => WordKind::Epoch,
        1 => WordKind::Digested,
        2 => WordKind::Retired,
        3 => WordKind::CommitTs,
        4 => WordKind::Clean,
        5 => WordKind::Proposal(input.u8() % PROPOSALS as u8),
        6 => WordKind::Staged,
        _ => WordKind::Head(input.u16() % 56),
    };
    let mut word = input.u64();
    if fix {
        word = SeqWord::encode(word & MAX_NUMBER, kind.salt(salt));
    }
    if let Some(number) = SeqWord::decode(word, kind.salt(salt)) {
        seen.add("number");
        assert_eq!(SeqWord::encode(number, kind.salt(salt)), word);
        assert_ne!(word, 0);
    }
    if let Some(epoch) = EpochWord::decode(word, salt) {
        seen.add("epoch");
        assert_eq!(epoch.encode(salt), word);
    }
}

/// The copy of the page on the data device.
fn superblock_copy(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    let (salt, flags) = (input.u64(), input.u8());
    let mut page = vec![0; JSB_BYTES];
    overlay(&mut input, &mut page, 8);
    let mut copy = match flags & 1 {
        0 => backup::encode_superblock(&page, salt),
        _ => page,
    };
    if flags & 2 != 0 {
        copy.truncate(usize::from(flags) * 16);
    }
    if let Some(page) = backup::decode_superblock(&copy, salt) {
        seen.add("copy");
        assert_eq!(backup::encode_superblock(&page, salt), copy);
    }
}

/// A slot header.
pub fn slot(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    let (salt, buffer, index) = (input.u64(), input.u16() % 16, u64::from(input.u32()));
    let fix = input.flag();
    let mut b = [0; LINE];
    overlay(&mut input, &mut b, 8);
    if fix {
        fixup::slot_header(&mut b, salt, buffer, index);
    }
    let committed = slot::committed(&b, salt, buffer, index);
    if committed.is_some() {
        seen.add("committed word");
    }
    if fix {
        assert_eq!(committed, Some(get_u64(&b, 56) & MAX_NUMBER));
    }
    if let Some(h) = SlotHeader::decode(&b, salt, buffer) {
        seen.add("header");
        let seq = committed.unwrap_or(0);
        let again = h.encode_committed(salt, buffer, index, seq);
        assert_eq!(SlotHeader::decode(&again, salt, buffer), Some(h));
        assert_eq!(slot::committed(&again, salt, buffer, index), Some(seq));
    }
    let mut word = [0; LINE];
    put_u64(
        &mut word,
        56,
        SeqWord::encode(7, committed_salt(salt, buffer, index)),
    );
    assert_eq!(slot::committed(&word, salt, buffer, index), Some(7));
}

/// A record: header, slot runs, items.
pub fn record(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    let salt = input.u64();
    let (fix, valid) = (input.flag(), input.flag());
    let mut b = [0; LINE];
    if valid {
        b = RecordHeader {
            kind: RecordKind::Operation,
            epoch: 1,
            seq: 1,
            pos: 0,
            lane: 0,
            body_len: 64,
            runs_len: 40,
            body_crc: 0,
        }
        .encode(salt);
    }
    overlay(&mut input, &mut b, 4);
    if fix {
        let crc = record::body_crc(&b[..60], salt);
        put_u32(&mut b, 60, crc);
    }
    let (lane, epoch, pos) = (get_u16(&b, 34), get_u32(&b, 4), get_u64(&b, 16));
    if let Some(h) = RecordHeader::decode(&b, salt, lane, epoch, pos) {
        seen.add("header");
        let again = RecordHeader::decode(&h.encode(salt), salt, lane, epoch, pos);
        assert_eq!(again, Some(h));
        assert!(h.runs_len <= h.body_len);
        assert!(h.total_bytes() <= MAX_RECORD_BYTES as u64 || h.kind == RecordKind::Filler);
        assert!(h.total_bytes() % LINE as u64 == 0);
    }
    runs(input.rest(), seen);
}

fn runs(bytes: &[u8], seen: &mut Seen) {
    if let Some(runs) = SlotRun::decode_table(bytes) {
        if !runs.is_empty() {
            seen.add("runs");
        }
        let mut out = Vec::new();
        for r in &runs {
            let before = out.len();
            r.encode_into(&mut out);
            assert_eq!(out.len() - before, r.encoded_bytes());
        }
        assert_eq!(out.len(), bytes.len());
        assert_eq!(SlotRun::decode_table(&out), Some(runs));
    }
}

/// The items of a record, applied to a page.
pub fn items(data: &[u8], seen: &mut Seen) {
    let items: Vec<_> = item::decode(data).collect();
    let good: Vec<_> = items.iter().flatten().copied().collect();
    assert!(
        good.len() + 1 >= items.len(),
        "decoding goes on behind an error"
    );
    let mut out = Vec::new();
    good.iter().for_each(|i| i.encode(&mut out));
    let again: Result<Vec<_>, _> = item::decode(&out).collect();
    assert_eq!(again.as_ref(), Ok(&good));
    let mut page = vec![0; BLOCK];
    node::init(&mut page, 1, NodeKind::Bitmap, 0);
    for item in good {
        let _ = item.node();
        match item {
            Item::Delta { at, bytes, .. } => {
                seen.add("delta");
                assert!(at + bytes.len() <= BLOCK);
            }
            Item::Bits {
                start, count, set, ..
            } => {
                seen.add("bits");
                let all = 0..BITS_PER_PAGE;
                let range = u64::from(start)..u64::from(start) + u64::from(count);
                let set_before = all.clone().filter(|i| node::bit(&page, *i)).count();
                let flipped = node::change_bits(&mut page, range.start, u64::from(count), set);
                let set_after = all.filter(|i| node::bit(&page, *i)).count();
                assert_eq!(set_before.abs_diff(set_after), flipped as usize);
                assert!(range.into_iter().all(|i| node::bit(&page, i) == set));
                assert_eq!(node::bits_set(&page) as usize, set_after);
            }
            Item::NodeNew { .. } => seen.add("new node"),
            Item::NodeFree { .. } => seen.add("free node"),
            Item::Charge {
                slot,
                subject,
                blocks,
                inodes,
                ..
            } => {
                seen.add("charge");
                let slot = usize::from(slot);
                let mut page = vec![0; BLOCK];
                quota::charge(&mut page, slot, subject, blocks, inodes.into());
                let e = quota::Entry::decode(&page[quota::offset(slot)..]);
                assert_eq!(e.subject, subject);
                assert_eq!(e.usage.blocks, blocks.max(0).unsigned_abs());
                assert_eq!(e.usage.inodes, u64::from(inodes.max(0).unsigned_abs()));
            }
        }
    }
}

/// A batch log's head and a batch: made of the bytes, and damaged by them with a checksum that holds.
fn batches(data: &[u8], seen: &mut Seen) {
    const SALT: u64 = 5;
    let number = |at: usize| {
        let bytes = (0..8).map(|i| u64::from(*data.get(at + i).unwrap_or(&0)) << (8 * i));
        bytes.sum::<u64>()
    };
    let head = LogHead {
        generation: number(0).min(u64::MAX - 1),
        life: number(8),
        retired: number(16),
    };
    assert_eq!(LogHead::decode(&head.encode(SALT), SALT), Some(head));
    seen.add("head");

    let sectors = |pair: &[u8]| {
        let first = u64::from(pair[0]) * 64;
        first * 512..(first + u64::from(pair[1] % 16)) * 512
    };
    let pieces: Vec<_> = data.chunks_exact(2).take(64).map(sectors).collect();
    let content: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
    let start = batch::head_bytes(pieces.len());
    let mut bytes: Vec<u8> = data
        .iter()
        .copied()
        .cycle()
        .take(start + content as usize)
        .collect();
    bytes.resize(start + content as usize, 0);
    let id = BatchId {
        life: 7,
        lap: number(0),
        seq: number(8),
    };
    batch::seal(&mut bytes, id, &pieces, SALT);
    let made = Batch::decode(&bytes, 7, SALT).expect("a batch that was just made");
    assert_eq!(
        (made.id, made.len, made.pieces.len()),
        (id, bytes.len(), pieces.len())
    );
    seen.add("batch");

    for patch in data.chunks_exact(3).take(32) {
        let at = 16 + usize::from(u16::from_le_bytes([patch[0], patch[1]])) % (start - 16);
        bytes[at] = patch[2];
        let crc = crc32c_append(crc32c(&SALT.to_le_bytes()), &bytes[..4]);
        let crc = crc32c_append(crc, &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        if let Some(other) = Batch::decode(&bytes, 7, SALT) {
            let content: usize = other.pieces.iter().map(|(_, content)| content.len()).sum();
            assert_eq!(other.len, batch::head_bytes(other.pieces.len()) + content);
        }
    }
}
