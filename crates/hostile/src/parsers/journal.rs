//! Superblock words, slot headers, records and their items.

use quayfs_layout::bytes::{get_u16, get_u32, get_u64, put_u32, put_u64};
use quayfs_layout::item::{self, Item};
use quayfs_layout::jsb::{EpochWord, MAX_NUMBER, PROPOSALS, SeqWord, WordKind, committed_salt};
use quayfs_layout::node::{self, BITS_PER_PAGE, NodeKind};
use quayfs_layout::record::{self, MAX_RECORD_BYTES, RecordHeader, RecordKind, SlotRun};
use quayfs_layout::slot::{self, SlotHeader};
use quayfs_layout::{BLOCK, LINE, quota};

use super::Seen;
use crate::fixup;
use crate::input::{Input, overlay};

/// Words of the journal superblock.
pub fn superblock(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    let salt = input.u64();
    let fix = input.flag();
    let kind = match input.u8() % 7 {
        0 => WordKind::Epoch,
        1 => WordKind::Digested,
        2 => WordKind::Retired,
        3 => WordKind::CommitTs,
        4 => WordKind::Clean,
        5 => WordKind::Proposal(input.u8() % PROPOSALS as u8),
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
                project,
                blocks,
                inodes,
                ..
            } => {
                seen.add("charge");
                let slot = usize::from(slot);
                let mut page = vec![0; BLOCK];
                quota::charge(&mut page, slot, project, blocks, inodes.into());
                let e = quota::Entry::decode(&page[quota::offset(slot)..]);
                assert_eq!(e.project, project);
                assert_eq!(e.usage.blocks, blocks.max(0).unsigned_abs());
                assert_eq!(e.usage.inodes, u64::from(inodes.max(0).unsigned_abs()));
            }
        }
    }
}
