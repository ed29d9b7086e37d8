//! Bit rot: what is damage is called damage, what a record vouches for is repaired, and nothing read
//! from the medium makes a scan panic.

use crate::common;

use common::*;
use proptest::prelude::*;
use quayfs_journal::*;
use quayfs_layout::jsb::{EpochWord, JSB_BYTES, Mode, SeqWord, WordKind, committed_salt};
use quayfs_layout::record::{RECORD_HEADER_BYTES, RecordHeader, body_crc};
use quayfs_layout::slot::{COMMITTED_OFFSET, SlotHeader};
use quayfs_pmem::{Backend, Region};
use std::sync::Arc;

/// A volume with five records in one lane (so that each has a successor), two of them digested.
/// Returns the region and, for each record, its position in the lane.
fn five(mode: Durability) -> (Arc<Region>, JournalGeometry, Vec<u64>) {
    let (geo, len) = geometry(2, 16 << 10, 8);
    let len = len + 4096;
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, mode).expect("format");
    let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
    let j = scan
        .into_journal(RecoveredTo { digested: 0 }, options(mode))
        .expect("recover");
    let mut at = vec![0];
    for op in 1..=5u64 {
        let mut credit = j
            .acquire(Need {
                slots: 1,
                record_bytes: 64,
                prefer: 0,
            })
            .expect("room");
        let block = content(op, op);
        let staged = j.stage(&mut credit, &[(op, &block)]).expect("stage");
        j.append(credit, vec![staged], &[op as u8; 64])
            .expect("append");
        at.push(at[at.len() - 1] + 192);
    }
    j.commit(Some(5)).expect("commit");
    for r in j.read_records(0, 2, 1 << 20, 10).expect("records").iter() {
        j.mark_committed(r);
    }
    j.set_digested(2).expect("digest");
    (region, geo, at)
}

fn flip(region: &Region, off: u64) {
    let mut b = [0];
    region.read(off, &mut b);
    region.write(off, &[b[0] ^ 0x10]);
}

fn scan(region: &Arc<Region>, geo: &JournalGeometry) -> Scan {
    Journal::scan(Arc::clone(region), geo).expect("scan")
}

fn seqs(s: &Scan) -> Vec<u64> {
    s.records.iter().map(|r| r.seq).collect()
}

#[test]
fn the_fixture_is_sound() {
    for mode in [Durability::Op, Durability::Commit] {
        let (region, geo, _) = five(mode);
        let s = scan(&region, &geo);
        assert_eq!(
            (s.damage.as_slice(), seqs(&s), s.live.len()),
            (&[][..], vec![3, 4, 5], 5)
        );
        assert_eq!(s.intact_upto(), u64::MAX);
    }
}

#[test]
fn in_op_an_invalid_record_with_a_valid_successor_is_damage() {
    // Byte of the record, and what can still be told.
    for (byte, seq) in [(80, Some(4)), (9, None), (60, None)] {
        let (region, geo, at) = five(Durability::Op);
        flip(&region, geo.lane_off + at[3] + byte);
        let s = scan(&region, &geo);
        assert_eq!(
            s.damage,
            [Damage::Record {
                lane: 0,
                pos: at[3],
                seq
            }]
        );
        assert_eq!(seqs(&s), [3, 5], "what follows is still found");
        assert_eq!(s.intact_upto(), 3);
        // A caller that accepts the loss goes on after the last record before it.
        s.store_digested(3).expect("digest");
        let j = s.into_journal(RecoveredTo { digested: 3 }, options(Durability::Op));
        let j = j.expect("damage justifies what is left");
        assert_eq!(
            j.live_slots(u64::MAX - 1)
                .iter()
                .map(|l| l.lbn)
                .collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert_eq!(j.last_seq(), 5);
        drop(j);
        let s = scan(&region, &geo);
        assert!(
            s.damage.is_empty() && s.records.is_empty(),
            "{:?}",
            s.damage
        );
        assert_eq!(s.live.len(), 3);
    }
}

#[test]
fn rot_below_digested_is_history() {
    for byte in [9, 80] {
        let (region, geo, at) = five(Durability::Op);
        // As after a crash between digested_seq and the heads: digested_seq is 4, the walk starts at 3.
        let salt = WordKind::Digested.salt(geo.volume_salt);
        region.store_u64(
            geo.jsb_off + WordKind::Digested.offset(),
            SeqWord::encode(4, salt),
        );
        for index in [2, 3] {
            let word = geo.slot_hdr_off + index * 64 + COMMITTED_OFFSET;
            let salt = committed_salt(geo.volume_salt, 0, index);
            region.store_u64(word, SeqWord::encode(index + 1, salt));
        }
        flip(&region, geo.lane_off + at[2] + byte);
        let s = scan(&region, &geo);
        // Record 4 shows that 3 is at or below digested_seq; 5 does not show it of 4.
        assert_eq!(
            (s.damage.as_slice(), seqs(&s), s.live.len()),
            (&[][..], vec![5], 5)
        );
        flip(&region, geo.lane_off + at[3] + 9);
        let s = scan(&region, &geo);
        assert_eq!(s.damage.len(), 1, "{:?}", s.damage);
    }
}

#[test]
fn in_op_an_invalid_last_record_is_the_end_of_the_log() {
    for byte in [80, 9] {
        let (region, geo, at) = five(Durability::Op);
        flip(&region, geo.lane_off + at[4] + byte);
        let s = scan(&region, &geo);
        assert_eq!((s.damage.as_slice(), seqs(&s)), (&[][..], vec![3, 4]));
    }
}

/// One fence settles a record and what it stages. Only behind the last record of a lane may it not have come.
#[test]
fn in_op_the_last_record_needs_its_payloads() {
    for (index, seqs_left, live) in [(4, &[3, 4][..], 4), (3, &[3, 4, 5], 5)] {
        let (region, geo, _) = five(Durability::Op);
        flip(&region, geo.slot_data_off + 4096 * index + 1000);
        let s = scan(&region, &geo);
        assert_eq!((s.damage.as_slice(), seqs(&s)), (&[][..], seqs_left.into()));
        assert_eq!((s.live.len(), s.max_seq_seen), (live, 5));
        // Its number and its place in the lane are not given to another one.
        let digested = seqs_left[seqs_left.len() - 1];
        s.store_digested(digested).expect("digest");
        let j = s
            .into_journal(RecoveredTo { digested }, options(Durability::Op))
            .expect("recover");
        assert_eq!((j.last_seq(), j.live_slots(u64::MAX - 1).len()), (5, live));
        drop(j);
        let s = scan(&region, &geo);
        assert_eq!((s.damage.as_slice(), seqs(&s)), (&[][..], vec![]));
    }
    // In `commit` mode `commit_ts` vouches for all that is at or below it.
    let (region, geo, _) = five(Durability::Commit);
    flip(&region, geo.slot_data_off + 4096 * 4 + 1000);
    assert_eq!(seqs(&scan(&region, &geo)), [3, 4, 5]);
}

/// The header of a slot may be missing under the last record of a lane, which is no reason to speak of damage.
#[test]
fn headers_that_a_crash_leaves_out_are_no_repairs() {
    for (index, repairs) in [(4, 0), (3, 1)] {
        let (region, geo, _) = five(Durability::Op);
        region.write(geo.slot_hdr_off + index * 64, &[0; 64]);
        let s = scan(&region, &geo);
        assert_eq!((s.damage.as_slice(), s.repairs()), (&[][..], repairs));
        s.store_digested(5).expect("digest");
        drop(s);
        let s = scan(&region, &geo);
        assert_eq!((s.damage.as_slice(), s.live.len()), (&[][..], 5));
    }
}

#[test]
fn in_commit_mode_every_committed_record_must_be_there() {
    for (record, byte) in [(3, 80), (3, 9), (4, 80), (4, 9)] {
        let (region, geo, at) = five(Durability::Commit);
        flip(&region, geo.lane_off + at[record] + byte);
        let s = scan(&region, &geo);
        let n = record as u64 + 1;
        assert!(
            s.damage.contains(&Damage::Missing { first: n, last: n }),
            "{:?}",
            s.damage
        );
        assert_eq!(
            seqs(&s),
            [3, 4, 5]
                .into_iter()
                .filter(|&q| q != n)
                .collect::<Vec<_>>()
        );
        assert_eq!(s.intact_upto(), n - 1);
    }
}

#[test]
fn in_op_a_hole_is_an_append_that_was_under_way() {
    let recorder = formatted(Backend::Dax, Durability::Op);
    let v = Volume::of_recorder(&recorder, Durability::Op);
    let holes = [v.write(2, &[2]), v.write(3, &[3]), v.write(4, &[4])];
    assert_eq!(
        holes.map(|a| (a.seq, a.slots[0].buffer)),
        [(1, 0), (2, 1), (3, 0)]
    );
    // Lane 0 was appending number 3 and lane 1 number 2 when power failed; 1 is a hole of neither.
    let (geo, region) = (v.geo, Arc::clone(&v.region));
    drop(v);
    let second = geo.lane_off + geo.lane_bytes;
    region.write(second, &[0; 64]);
    let s = scan(&region, &geo);
    assert_eq!((s.damage.as_slice(), seqs(&s)), (&[][..], vec![1, 3]));
    assert_eq!(
        (s.intact_upto(), s.max_seq_seen, s.live.len()),
        (u64::MAX, 3, 2)
    );
    let j = s
        .into_journal(RecoveredTo { digested: 3 }, options(Durability::Op))
        .expect("recover");
    assert_eq!((j.last_seq(), j.complete_upto(), j.digested()), (3, 3, 3));
}

#[test]
fn in_op_more_holes_than_lanes_are_damage() {
    let (region, geo, at) = five(Durability::Op);
    // Move the fifth record to the third's place: one lane, two holes.
    let mut header = [0; RECORD_HEADER_BYTES];
    region.read(geo.lane_off + at[4], &mut header);
    let mut h = RecordHeader::decode(&header, geo.volume_salt, 0, 2, at[4]).expect("the fifth");
    (h.pos, h.seq) = (at[2], 6);
    let mut bytes = region.read_vec(geo.lane_off + at[4], 192);
    bytes[..64].copy_from_slice(&h.encode(geo.volume_salt));
    region.write(geo.lane_off + at[2], &bytes);
    region.write(geo.lane_off + at[3], &[0; 384]);
    let s = scan(&region, &geo);
    assert_eq!(
        (s.damage.as_slice(), seqs(&s)),
        (&[Damage::Missing { first: 3, last: 5 }][..], vec![6])
    );
    assert_eq!(s.intact_upto(), 2);
}

#[test]
fn a_record_that_vouches_repairs_the_header() {
    for mode in [Durability::Op, Durability::Commit] {
        let (region, geo, _) = five(mode);
        // Record 4 names index 3: rot in the header, the header of an earlier lap, a bad word.
        let header = geo.slot_hdr_off + 3 * 64;
        let stale = SlotHeader {
            pos: 11,
            lbn: 99,
            stage_id: 1,
            epoch: 1,
            payload_crc: 0,
        };
        let stale = stale.encode(geo.volume_salt, 0, 3);
        for rot in 0..3 {
            match rot {
                0 => flip(&region, header + 17),
                1 => region.write(header, &stale),
                _ => flip(&region, header + COMMITTED_OFFSET),
            }
            let s = scan(&region, &geo);
            assert!(s.damage.is_empty(), "{:?}", s.damage);
            assert!(s.live.iter().any(|l| (l.lbn, l.seq, l.pos) == (4, 4, 3)));
        }
        let s = scan(&region, &geo);
        s.store_digested(5).expect("digest");
        drop(s);
        // Recovery dies here. Now the slot has to be live by itself.
        let s = scan(&region, &geo);
        assert!(
            s.damage.is_empty() && s.records.is_empty(),
            "{:?}",
            s.damage
        );
        assert_eq!(s.live.len(), 5);
        let j = s
            .into_journal(RecoveredTo { digested: 5 }, options(mode))
            .expect("recover");
        let mut block = [0; 4096];
        for l in j.live_slots(5) {
            j.read_slot(&l.slot(), &mut block).expect("intact");
            assert_eq!(block, content(l.lbn, l.lbn));
        }
    }
}

#[test]
fn slots_without_a_record_stand_for_themselves() {
    let damaged = |index, kind| {
        vec![Damage::Slot {
            buffer: 0,
            index,
            kind,
        }]
    };
    let word = |geo: &JournalGeometry, index: u64| geo.slot_hdr_off + index * 64 + COMMITTED_OFFSET;
    let store = |region: &Region, geo: &JournalGeometry, index, n| {
        let salt = committed_salt(geo.volume_salt, 0, index);
        region.store_u64(word(geo, index), SeqWord::encode(n, salt));
    };
    let check = |rot: &dyn Fn(&Region, &JournalGeometry), expected: Vec<Damage>, live: usize| {
        let (region, geo, _) = five(Durability::Op);
        rot(&region, &geo);
        let s = scan(&region, &geo);
        assert_eq!((s.damage, s.live.len()), (expected, live));
    };
    // Index 1 is digested, 6 was never used.
    check(
        &|r, g| flip(r, g.slot_hdr_off + 64),
        damaged(1, SlotDamage::Header),
        4,
    );
    check(
        &|r, g| flip(r, word(g, 1)),
        damaged(1, SlotDamage::CommittedWord),
        4,
    );
    check(
        &|r, g| flip(r, word(g, 6)),
        damaged(6, SlotDamage::CommittedWord),
        5,
    );
    check(&|r, g| flip(r, g.slot_hdr_off + 6 * 64), vec![], 5);
    check(
        &|r, g| store(r, g, 6, 77),
        damaged(6, SlotDamage::LostRecord),
        5,
    );
    check(&|r, g| store(r, g, 1, 0), vec![], 4);
    // A digested record's own rot is history.
    check(&|r, g| flip(r, g.lane_off + 100), vec![], 5);
}

#[test]
fn a_lost_record_leaves_no_slot_behind() {
    let (region, geo, at) = five(Durability::Op);
    // Digest got as far as the committed word of record 5, and then the record rots.
    let salt = committed_salt(geo.volume_salt, 0, 4);
    let off = geo.slot_hdr_off + 4 * 64 + COMMITTED_OFFSET;
    region.store_u64(off, SeqWord::encode(5, salt));
    flip(&region, geo.lane_off + at[4] + 80);
    let s = scan(&region, &geo);
    let kind = SlotDamage::LostRecord;
    assert_eq!(
        s.damage,
        [Damage::Slot {
            buffer: 0,
            index: 4,
            kind
        }]
    );
    let digested = s.records.last().expect("3 and 4").seq;
    let j = s
        .into_journal(RecoveredTo { digested }, options(Durability::Op))
        .expect("recover");
    assert_eq!(j.live_slots(100).len(), 4);
    drop(j);
    assert_eq!(
        scan(&region, &geo).live.len(),
        4,
        "digested_seq moving on does not bring it back"
    );
}

/// Stores the epoch word. The fixture's records are of epoch 2.
fn set_epoch(region: &Region, geo: &JournalGeometry, epoch: u32, mode: Durability) {
    let mode = match mode {
        Durability::Op => Mode::Op,
        Durability::Commit => Mode::Commit,
    };
    let word = EpochWord {
        epoch,
        mode,
        repairing: false,
    };
    let off = geo.jsb_off + WordKind::Epoch.offset();
    region.store_u64(off, word.encode(geo.volume_salt));
}

#[test]
fn an_epoch_word_that_records_contradict_is_damage() {
    for mode in [Durability::Op, Durability::Commit] {
        // A later epoch cannot have any records, an earlier one none above digested_seq. That is 2, and the head
        // of the lane is where record 3 begins.
        for current in [1, 3, 9] {
            let (region, geo, at) = five(mode);
            set_epoch(&region, &geo, current, mode);
            let s = scan(&region, &geo);
            let stray = Damage::Epoch {
                lane: 0,
                pos: at[2],
                seq: 3,
                epoch: 2,
                current,
            };
            assert!(s.damage.contains(&stray), "{mode:?} {:?}", s.damage);
            assert_eq!((seqs(&s), s.stray_epoch), (vec![], Some(2)));
            assert_eq!((s.intact_upto(), s.max_seq_seen), (2, 5));
        }
        let (region, geo, _) = five(mode);
        set_epoch(&region, &geo, 0, mode);
        assert!(matches!(
            Journal::scan(Arc::clone(&region), &geo),
            Err(JournalError::Superblock(WordKind::Epoch))
        ));
    }
}

#[test]
fn records_of_a_later_epoch_never_come_to_life() {
    for mode in [Durability::Op, Durability::Commit] {
        let (region, geo, _) = five(mode);
        set_epoch(&region, &geo, 1, mode);
        // The next epoch would be theirs.
        for life in 0..3 {
            let s = scan(&region, &geo);
            let strays = s
                .damage
                .iter()
                .filter(|d| matches!(d, Damage::Epoch { .. }));
            assert_eq!(strays.count(), usize::from(life == 0), "{:?}", s.damage);
            assert_eq!(seqs(&s), [], "life {life}");
            let digested = s.digested;
            let j = s.into_journal(RecoveredTo { digested }, options(mode));
            assert_eq!(j.expect("recover").last_seq(), 5);
        }
    }
}

/// A record that is not of this epoch, as the last one of its lane, looks like the end of the lane.
#[test]
fn a_forged_record_waits_for_no_epoch() {
    for ahead in [1, 2, 100] {
        let (region, geo, at) = five(Durability::Op);
        let off = geo.lane_off + at[4];
        let mut b = [0; RECORD_HEADER_BYTES];
        region.read(off, &mut b);
        let h = RecordHeader::decode(&b, geo.volume_salt, 0, 2, at[4]).expect("record 5");
        let epoch = h.epoch + ahead;
        region.write(off, &RecordHeader { epoch, ..h }.encode(geo.volume_salt));
        let s = scan(&region, &geo);
        let stray = Damage::Epoch {
            lane: 0,
            pos: at[4],
            seq: 5,
            epoch,
            current: 2,
        };
        assert_eq!((s.damage.as_slice(), seqs(&s)), (&[stray][..], vec![3, 4]));
        assert_eq!(s.intact_upto(), 4);
    }
}

/// Power fails in the middle of a header, twice at the same place and under the same operation, once in
/// each of two lives: what arrived the second time is what was missing the first time.
/// Nor does it lead out of the region, where it is the last one and its payloads are looked at.
#[test]
fn a_forged_record_may_name_any_buffer() {
    let (region, geo, at) = five(Durability::Op);
    let off = geo.lane_off + at[4];
    let mut b = [0; RECORD_HEADER_BYTES];
    region.read(off, &mut b);
    let h = RecordHeader::decode(&b, geo.volume_salt, 0, 2, at[4]).expect("record 5");
    let body_off = off + RECORD_HEADER_BYTES as u64;
    let mut body = region.read_vec(body_off, h.body_len.into());
    for buffer in [2, 9, u16::MAX] {
        body[..2].copy_from_slice(&buffer.to_le_bytes());
        let body_crc = body_crc(&body, geo.volume_salt);
        region.write(body_off, &body);
        region.write(off, &RecordHeader { body_crc, ..h }.encode(geo.volume_salt));
        let kind = SlotDamage::NoSuchBuffer;
        let damage = Damage::Slot {
            buffer,
            index: 4,
            kind,
        };
        assert_eq!(scan(&region, &geo).damage, [damage]);
    }
}

#[test]
fn two_torn_headers_do_not_make_a_record() {
    for mode in [Durability::Op, Durability::Commit] {
        for word in 1..7 {
            let (region, geo, at) = five(mode);
            if mode == Durability::Commit {
                let salt = WordKind::CommitTs.salt(geo.volume_salt);
                let off = geo.jsb_off + WordKind::CommitTs.offset();
                region.store_u64(off, SeqWord::encode(4, salt));
            }
            let missing = geo.lane_off + at[4] + word * 8;
            let arrives = region.load_u64(missing);
            region.store_u64(missing, !arrives);
            let s = scan(&region, &geo);
            assert_eq!((seqs(&s), s.max_seq_seen), (vec![3, 4], 4), "{mode:?}");
            s.store_digested(4).expect("digest");
            let j = s.into_journal(RecoveredTo { digested: 4 }, options(mode));
            drop(j.expect("recover"));
            region.store_u64(missing, arrives);
            let s = scan(&region, &geo);
            let stray = |d: &Damage| matches!(d, Damage::Epoch { .. });
            assert!(
                !s.damage.iter().any(stray),
                "{mode:?} {word}: {:?}",
                s.damage
            );
        }
    }
}

#[test]
fn a_rotten_payload_is_found_on_reading() {
    let (region, geo, _) = five(Durability::Op);
    flip(&region, geo.slot_data_off + 4096 * 2 + 1000);
    let s = scan(&region, &geo);
    assert!(s.damage.is_empty());
    let j = s
        .into_journal(RecoveredTo { digested: 5 }, options(Durability::Op))
        .expect("recover");
    let mut block = [0; 4096];
    let bad = j
        .live_slots(5)
        .iter()
        .filter(|l| j.read_slot(&l.slot(), &mut block).is_err())
        .count();
    assert_eq!(bad, 1);
}

#[test]
fn a_record_that_rots_before_it_is_digested_is_an_error() {
    let recorder = formatted(Backend::Dax, Durability::Op);
    let v = Volume::of_recorder(&recorder, Durability::Op);
    v.write(2, &[2]);
    v.write(4, &[1]);
    let lane = v.geo.lane_off;
    flip(&v.region, lane + 70);
    assert!(matches!(
        v.journal.read_records(0, 2, 1 << 20, 10),
        Err(JournalError::Record {
            lane: 0,
            pos: 0,
            seq: 1
        })
    ));
}

#[test]
fn another_volume_is_not_this_one() {
    let (region, geo, _) = five(Durability::Op);
    let other = JournalGeometry {
        volume_salt: geo.volume_salt + 1,
        ..geo
    };
    assert!(matches!(
        Journal::scan(Arc::clone(&region), &other),
        Err(JournalError::Superblock(_))
    ));
    // mkfs over an old volume: none of its records or slots come back.
    Journal::format(&region, &other, Durability::Op).expect("format");
    let s = scan(&region, &other);
    assert!(s.damage.is_empty() && s.records.is_empty() && s.live.is_empty() && s.clean());
    assert_eq!(s.max_seq_seen, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    /// Any few bytes, anywhere: a scan answers, and what it says can be recovered from. Without
    /// reported damage nothing is wrong with what is there, except that `op` cannot tell a rotten
    /// last record from one that was never finished.
    #[test]
    fn no_rot_makes_a_scan_panic(
        rot in prop::collection::vec((0u64..JSB_BYTES as u64 + (32 << 10) + 1024, any::<u8>()), 1..4),
        commit: bool,
    ) {
        let mode = if commit { Durability::Commit } else { Durability::Op };
        let (region, geo, _) = five(mode);
        let mut changed = false;
        for (off, byte) in rot {
            let mut old = [0];
            region.read(off, &mut old);
            changed |= old[0] != byte;
            region.write(off, &[byte]);
        }
        match Journal::scan(Arc::clone(&region), &geo) {
            Err(e) => prop_assert!(changed && matches!(e, JournalError::Superblock(_)), "{e}"),
            Ok(s) => {
                if s.damage.is_empty() && commit {
                    prop_assert_eq!(seqs(&s), vec![3, 4, 5]);
                }
                let last = s.records.last().map_or(s.digested, |r| r.seq).min(s.intact_upto());
                let to = RecoveredTo { digested: last };
                let j = s.into_journal(to, options(mode)).expect("recover");
                for l in j.live_slots(u64::MAX - 1) {
                    let mut block = [0; 4096];
                    j.read_slot(&l.slot(), &mut block).expect("payloads are untouched");
                    prop_assert_eq!(block, content(l.lbn, l.lbn));
                }
                let again = scan(&region, &geo);
                prop_assert!(again.records.is_empty());
                let of_slots = again.damage.iter().all(|d| matches!(d, Damage::Slot { .. }));
                prop_assert!(of_slots, "{:?}", again.damage);
            }
        }
    }
}
