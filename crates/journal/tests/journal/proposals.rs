//! Commits of one drain: what recovery believes of the last one, and what it makes of what is missing.

use crate::common;

use common::*;
use quayfs_journal::*;
use quayfs_layout::jsb::{PROPOSALS, SeqWord, WordKind};
use quayfs_pmem::{Backend, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const OPS: u64 = 4;
/// Numbers of operations that nothing else in a lane looks like.
const FIRST: u64 = 0xabc_0000;

/// Commits one operation after the other, each a block of its own. The sequence numbers, and what is on the medium.
fn committed() -> (JournalGeometry, Vec<u64>, Vec<u8>) {
    let recorder = formatted(Backend::File, Durability::Commit);
    let volume = Volume::of_recorder(&recorder, Durability::Commit);
    let numbers = (0..OPS)
        .map(|op| {
            let seq = volume.write(FIRST + op, &[op]).seq;
            assert_eq!(volume.journal.commit(None).expect("commit"), seq);
            seq
        })
        .collect();
    let region = recorder.region();
    (volume.geo, numbers, region.read_vec(0, region.len()))
}

/// Where a record names its operation and the number of its blocks, and where its payload is.
fn places(geo: &JournalGeometry, bytes: &[u8], op: u64) -> (usize, usize) {
    let items = [(FIRST + op).to_le_bytes(), 1u64.to_le_bytes()].concat();
    let lanes = &bytes[..geo.slot_hdr_off as usize];
    let record = lanes.windows(16).position(|w| w == items).expect("record");
    let payload = bytes
        .windows(4096)
        .skip(geo.slot_data_off as usize)
        .position(|w| w == content(op, FIRST + op))
        .expect("payload");
    (record, payload + geo.slot_data_off as usize)
}

fn scan(geo: &JournalGeometry, bytes: &[u8]) -> Scan {
    let region = Region::from_image(bytes, None, Backend::File);
    Journal::scan(Arc::new(region), geo).expect("scan")
}

#[test]
fn the_last_proposal_is_believed_if_all_of_it_is_there() {
    let (geo, numbers, bytes) = committed();
    let all = scan(&geo, &bytes);
    assert!(all.damage.is_empty() && all.repairs() == 0);
    assert_eq!(all.commit_ts, numbers[3]);
    for op in 0..OPS {
        for (lost, is_record) in [
            (places(&geo, &bytes, op).0, true),
            (places(&geo, &bytes, op).1, false),
        ] {
            let mut bytes = bytes.clone();
            bytes[lost] ^= 1;
            let found = scan(&geo, &bytes);
            let last = op == OPS - 1;
            // It was cut off: the one before it is what there is, and it is whole.
            let cut = numbers[if last { 2 } else { 3 }];
            assert_eq!(found.commit_ts, cut, "operation {op}");
            // A record that a later commit says was durable is damage. Payloads of those are looked at when they are read.
            assert_eq!(
                found.damage.is_empty(),
                last || !is_record,
                "operation {op}: {:?}",
                found.damage
            );
            if found.damage.is_empty() {
                assert_eq!(found.records.iter().map(|r| r.seq).max(), Some(cut));
            }
        }
    }
}

#[test]
fn a_proposal_that_cannot_be_read_is_damage_and_none_is_none() {
    let (geo, numbers, bytes) = committed();
    // Places take turns: the last one is in the first.
    for (place, cut) in [(0, numbers[2]), (1, numbers[3]), (2, numbers[3])] {
        let kind = WordKind::Proposal(place);
        let at = (geo.jsb_off + kind.offset()) as usize;
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let found = scan(&geo, &damaged);
        assert_eq!(found.damage, [Damage::Word(kind)]);
        assert_eq!(found.commit_ts, cut);
        let mut cleared = bytes.clone();
        cleared[at..at + 8].fill(0);
        let found = scan(&geo, &cleared);
        assert!(found.damage.is_empty());
        assert_eq!(found.commit_ts, cut);
    }
}

#[test]
fn a_new_life_begins_without_proposals_and_a_commit_covers_who_came_meanwhile() {
    let (geo, numbers, bytes) = committed();
    let region = Arc::new(Region::from_image(&bytes, None, Backend::File));
    let device = formatted(Backend::File, Durability::Commit).device();
    let volume = Volume::recover_with(geo, Arc::clone(&region), device, Durability::Commit, &"");
    for place in 0..PROPOSALS as u8 {
        let at = geo.jsb_off + WordKind::Proposal(place).offset();
        assert_eq!(region.load_u64(at), 0, "place {place}");
    }
    assert_eq!(volume.journal.commit_ts(), numbers[3]);
    let first = volume.write(1, &[1]).seq;
    let second = volume.write(2, &[2]).seq;
    // The cut is exact where it is asked for.
    assert_eq!(volume.journal.commit(Some(first)).expect("commit"), first);
    assert_eq!(volume.journal.commit(None).expect("commit"), second);
}

#[test]
fn what_depends_on_other_media_is_committed_after_them_and_in_two_drains() {
    let recorder = formatted(Backend::File, Durability::Commit);
    let volume = Volume::of_recorder(&recorder, Durability::Commit);
    let (j, region) = (&volume.journal, recorder.region());
    let (calls, fails) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    j.set_media({
        let (calls, fails) = (Arc::clone(&calls), Arc::clone(&fails));
        Box::new(move || {
            calls.fetch_add(1, Ordering::Relaxed);
            match fails.load(Ordering::Relaxed) {
                true => Err(std::io::ErrorKind::Other.into()),
                false => Ok(()),
            }
        })
    });
    let word = |kind: WordKind| {
        let raw = region.load_u64(volume.geo.jsb_off + kind.offset());
        SeqWord::decode(raw, kind.salt(volume.geo.volume_salt))
    };
    let first = volume.write(FIRST, &[1]).seq;
    assert_eq!(j.commit(None).expect("commit"), first);
    assert_eq!(
        calls.load(Ordering::Relaxed),
        0,
        "nothing depends on anything"
    );

    let need = Need {
        record_bytes: 64,
        ..Need::default()
    };
    let mut credit = j.acquire(need).expect("room");
    credit.depend_on_media();
    let dependent = j.append(credit, Vec::new(), &[0; 64]).expect("append").seq;
    let last = volume.write(FIRST + 1, &[2]).seq;
    assert_eq!(j.commit(None).expect("commit"), last);
    assert!(last > dependent);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(word(WordKind::CommitTs), Some(last), "no proposal says so");
    assert!((0..3).all(|place| word(WordKind::Proposal(place)) != Some(last)));

    let after = volume.write(FIRST + 2, &[3]).seq;
    assert_eq!(j.commit(None).expect("commit"), after);
    assert_eq!(
        calls.load(Ordering::Relaxed),
        1,
        "it depends on nothing again"
    );

    let mut credit = j.acquire(need).expect("room");
    credit.depend_on_media();
    j.append(credit, Vec::new(), &[0; 64]).expect("append");
    volume.write(FIRST + 3, &[4]);
    fails.store(true, Ordering::Relaxed);
    // Nor is what comes after it committed without it, and that is final.
    assert!(matches!(j.commit(None), Err(JournalError::Media(_))));
    fails.store(false, Ordering::Relaxed);
    assert!(matches!(j.commit(None), Err(JournalError::Stopped)));
    assert_eq!(j.commit_ts(), after);
}
