//! The life of a journal without crashes.

use quayfs_crashsim::Watched;
use quayfs_journal::*;
use quayfs_layout::jsb::{Closed, SeqWord, WordKind};
use quayfs_pmem::Region;
use std::sync::Arc;
use std::time::Duration;

fn geometry(buffers: u32, lane_bytes: u64, slots: u64) -> (JournalGeometry, u64) {
    let lane_off = 4096;
    let slot_hdr_off = lane_off + u64::from(buffers) * lane_bytes;
    let slot_data_off = (slot_hdr_off + u64::from(buffers) * slots * 64).next_multiple_of(4096);
    let geo = JournalGeometry {
        volume_salt: 0x5eed,
        jsb_off: 0,
        buffers,
        lane_off,
        lane_bytes,
        slot_hdr_off,
        slots_per_buffer: slots,
        slot_data_off,
    };
    (geo, slot_data_off + u64::from(buffers) * slots * 4096)
}

fn mount(region: &Arc<Region>, geo: &JournalGeometry, d: Durability) -> Journal {
    let scan = Journal::scan(Arc::clone(region), geo).expect("scan");
    assert!(scan.damage.is_empty(), "{:?}", scan.damage);
    let digested = scan.records.last().map_or(scan.digested, |r| r.seq);
    scan.into_journal(RecoveredTo { digested }, JournalOptions::new(d))
        .expect("recover")
}

fn write(j: &Journal, lbn: u64, fill: u8) -> Appended {
    let mut c = j
        .acquire(Need {
            slots: 1,
            record_bytes: 100,
            prefer: 0,
        })
        .expect("room");
    let s = j.stage(&mut c, &[(lbn, &[fill; 4096])]).expect("stage");
    j.append(c, vec![s], &[fill; 100]).expect("append")
}

#[test]
fn write_crash_recover_read() {
    let (geo, len) = geometry(2, 64 << 10, 16);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    let j = mount(&region, &geo, Durability::Op);
    assert_eq!(j.epoch(), 2);
    let a = write(&j, 7, 1);
    let b = write(&j, 8, 2);
    assert_eq!((a.seq, b.seq), (1, 2));
    assert_eq!(j.complete_upto(), 2);
    let mut buf = [0; 4096];
    j.read_slot(&a.slots[0], &mut buf).expect("read");
    assert_eq!(buf, [1; 4096]);
    let records = j.read_records(0, 2, usize::MAX, 10).expect("records");
    assert_eq!(records.len(), 2);
    let records: Vec<_> = records.iter().map(RecordRef::to_record).collect();
    assert_eq!(records[0].items, [1; 100]);
    assert_eq!(records[1].runs[0].blocks[0].0, 8);
    drop(j);

    let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
    assert_eq!(scan.records, records);
    assert_eq!(
        (scan.live.len(), scan.max_seq_seen, scan.clean()),
        (2, 2, false)
    );
    let j = scan
        .into_journal(
            RecoveredTo { digested: 2 },
            JournalOptions::new(Durability::Op),
        )
        .expect("recover");
    let live = j.live_slots(2);
    assert_eq!(live.iter().map(|l| l.lbn).collect::<Vec<_>>(), [7, 8]);
    j.read_slot(&live[1].slot(), &mut buf).expect("read");
    assert_eq!(buf, [2; 4096]);
    assert_eq!(write(&j, 9, 3).seq, 3);
}

#[test]
fn a_reader_goes_through_all_lanes_in_the_order_of_numbers() {
    const RECORDS: u64 = 1000;
    let (geo, len) = geometry(3, 256 << 10, 4);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    let j = mount(&region, &geo, Durability::Op);
    for n in 1..=RECORDS {
        let need = Need {
            slots: 0,
            record_bytes: 8,
            // Stretches of many in one lane, and some that change from one to the next.
            prefer: (n / 400 + n * u64::from(n % 7 == 0)) as usize,
        };
        let credit = j.acquire(need).expect("room");
        let appended = j.append(credit, vec![], &n.to_le_bytes());
        assert_eq!(appended.expect("append").seq, n);
    }
    let (first, last) = (3, RECORDS - 2);
    let mut records = Records::default();
    let mut reader = j.reader(first - 1, last);
    for most in (1..40).cycle() {
        let before = records.len();
        let read = reader.read(20 * 128, most, &mut records).expect("records");
        assert_eq!(records.len(), before + read);
        assert!(read <= most.min(20));
        if read == 0 {
            break;
        }
    }
    let found: Vec<_> = records
        .iter()
        .map(|r| (r.seq, r.items.to_vec(), r.runs().count()))
        .collect();
    let wanted: Vec<_> = (first..=last)
        .map(|n| (n, n.to_le_bytes().to_vec(), 0))
        .collect();
    assert_eq!(found, wanted);
    records.clear();
    assert!(records.is_empty() && records.last_seq().is_none());
}

#[test]
fn digest_retire_reuse_and_clean() {
    let (geo, len) = geometry(1, 16 << 10, 4);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    let j = mount(&region, &geo, Durability::Op);
    for lap in 0..20u64 {
        for i in 0..4 {
            write(&j, i, lap as u8);
        }
        let need = Need {
            slots: 1,
            record_bytes: 100,
            prefer: 0,
        };
        assert_eq!(j.acquire(need).err(), Some(AcquireError::Slots));
        let upto = j.digestable();
        for r in j
            .read_records(j.digested(), upto, usize::MAX, usize::MAX)
            .expect("records")
            .iter()
        {
            j.mark_committed(r);
        }
        j.set_digested(upto).expect("digest");
        assert!(matches!(
            j.advance_heads(upto, || ()),
            Err(JournalError::NotRetired { .. })
        ));
        let w = j.retired_word();
        region.store_u64(w.offset, w.encode(upto));
        region.persist(w.offset, 8).expect("persist");
        assert_eq!(j.live_slots(upto).len(), 4);
        assert_eq!(j.advance_heads(upto, || ()).expect("retire"), 4);
        assert!(j.live_slots(upto).is_empty());
    }
    j.set_clean(None).expect("clean");
    assert!(matches!(j.check(), Err(JournalError::Closed)));
    assert_eq!(
        j.acquire(Need::default()).err(),
        Some(AcquireError::Refused)
    );
    let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
    assert!(scan.clean() && scan.records.is_empty() && scan.live.is_empty());
    let j = mount(&region, &geo, Durability::Commit);
    drop(j);
    assert!(
        !Journal::scan(Arc::clone(&region), &geo)
            .expect("scan")
            .clean()
    );
}

#[test]
fn a_journal_says_that_it_was_closed_with_something_staged() {
    let (geo, len) = geometry(2, 64 << 10, 16);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    for durability in [Durability::Op, Durability::Commit] {
        let j = mount(&region, &geo, durability);
        assert!(!Journal::is_closed(&region, &geo).expect("words"));
        j.set_clean(Some(7)).expect("clean");
        assert!(Journal::is_closed(&region, &geo).expect("words"));
        let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
        assert!(scan.closed == Closed::Staged && !scan.clean() && scan.damage.is_empty());
        let word = region.load_u64(geo.jsb_off + WordKind::Staged.offset());
        let salt = WordKind::Staged.salt(geo.volume_salt);
        assert_eq!(SeqWord::decode(word, salt), Some(7));
        drop(j);
    }
}

#[test]
fn commit_mode_replays_up_to_the_commit_only() {
    let (geo, len) = geometry(2, 64 << 10, 16);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Commit).expect("format");
    let j = mount(&region, &geo, Durability::Commit);
    write(&j, 1, 1);
    write(&j, 2, 2);
    assert_eq!(j.digestable(), 0);
    assert!(matches!(
        j.set_digested(1),
        Err(JournalError::NotDigestable { .. })
    ));
    assert_eq!(j.commit(None).expect("commit"), 2);
    write(&j, 3, 3);
    assert_eq!(j.commit(Some(2)).expect("commit"), 2);
    drop(j);
    let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
    assert_eq!(
        scan.records.iter().map(|r| r.seq).collect::<Vec<_>>(),
        [1, 2]
    );
    assert_eq!((scan.live.len(), scan.max_seq_seen), (2, 3));
    let options = JournalOptions::new(Durability::Op);
    let early = scan.into_journal(RecoveredTo { digested: 1 }, options);
    assert!(matches!(
        early,
        Err(JournalError::NotRecovered {
            last: 2,
            digested: 1
        })
    ));
    let j = mount(&region, &geo, Durability::Op);
    assert_eq!(write(&j, 4, 4).seq, 4);
    assert_eq!(j.live_slots(u64::MAX - 1).len(), 3);
}

#[test]
fn failed_operations_return_their_slots() {
    let (geo, len) = geometry(1, 16 << 10, 4);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    let j = mount(&region, &geo, Durability::Op);
    let need = Need {
        slots: 4,
        record_bytes: 10,
        prefer: 0,
    };
    let mut c = j.acquire(need).expect("room");
    let s = j
        .stage(&mut c, &[(1, &[1; 4096]), (2, &[2; 4096])])
        .expect("stage");
    drop(s);
    drop(c);
    // The two that were not staged are back at once, the others when the head passes them.
    assert!(j.acquire(Need { slots: 3, ..need }).is_err());
    assert_eq!(j.advance_heads(0, || ()).expect("advance"), 2);
    drop(j.acquire(need).expect("room"));
    assert_eq!(j.stats().abandoned, 2);
    let c = j
        .acquire(Need {
            record_bytes: 1,
            ..Need::default()
        })
        .expect("room");
    assert!(matches!(
        j.append(c, vec![], &[0; 65]),
        Err(JournalError::RecordTooLarge { .. })
    ));
    let huge = Need {
        record_bytes: 1 << 20,
        ..Need::default()
    };
    assert_eq!(
        j.acquire_blocking(huge, Duration::MAX).err(),
        Some(AcquireError::TooLarge)
    );
    assert_eq!(
        j.acquire(Need { slots: 5, ..need }).err(),
        Some(AcquireError::TooLarge)
    );
}

#[test]
fn who_waits_for_credits_is_counted_by_what_is_short() {
    let (geo, len) = geometry(1, 64 << 10, 4);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    let j = mount(&region, &geo, Durability::Op);
    let need = Need {
        slots: 4,
        record_bytes: 10,
        prefer: 0,
    };
    let moment = Duration::from_millis(2);
    let all = j.acquire_blocking(need, moment).expect("room");
    let waits = |j: &Journal| (j.stats().slot_waits, j.stats().log_waits);
    assert_eq!((waits(&j), j.stats().credit_wait_us), ((0, 0), 0));
    let short = j.acquire_blocking(need, moment);
    assert_eq!(short.err(), Some(AcquireError::Slots));
    assert_eq!(waits(&j), (1, 0));
    assert!(j.stats().credit_wait_us > 0);
    drop(all);
    // Log space alone.
    let log = Need {
        slots: 0,
        record_bytes: 1000,
        prefer: 0,
    };
    let mut held = Vec::new();
    while let Ok(credit) = j.acquire(log) {
        held.push(credit);
    }
    assert_eq!(
        j.acquire_blocking(log, moment).err(),
        Some(AcquireError::Log)
    );
    assert_eq!(waits(&j), (1, 1));
}

/// Small needs that come all the time must not keep a large one from what it waits for.
#[test]
fn a_newcomer_leaves_what_the_first_in_line_waits_for() {
    let (geo, len) = geometry(2, 64 << 10, 8);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    let j = mount(&region, &geo, Durability::Op);
    let slots = |slots, prefer| Need {
        slots,
        record_bytes: 10,
        prefer,
    };
    let first = j.acquire(slots(5, 0)).expect("room");
    let _second = j.acquire(slots(3, 1)).expect("room");
    let one = j.acquire(slots(1, 1)).expect("nobody waits");
    drop(one);
    std::thread::scope(|s| {
        let waiter = s.spawn(|| j.acquire_blocking(slots(6, 0), Duration::MAX));
        // 3 and 5 slots are left, but once the waiter waits, not for other callers.
        let refused = loop {
            match j.acquire(slots(1, 1)) {
                Ok(credit) => drop(credit),
                Err(short) => break short,
            }
            std::thread::yield_now();
        };
        assert_eq!(refused, AcquireError::Slots);
        assert_eq!(
            j.acquire_blocking(slots(1, 1), Duration::from_millis(1))
                .err(),
            Some(AcquireError::Slots)
        );
        // Callers that wait for log space alone are in another line.
        assert!(j.acquire(slots(0, 0)).is_ok());
        drop(first);
        let large = waiter.join().expect("no panic").expect("room");
        assert_eq!((large.buffer(), large.slots_left()), (0, 6));
    });
    assert!(j.acquire(slots(1, 0)).is_ok());
}

/// A dead slot that the head cannot pass yet, because an operation before it is still under way, is
/// not live: a round that took it for the newest would write old content over new.
#[test]
fn what_is_retired_is_dead_even_if_the_head_is_stuck() {
    let (geo, len) = geometry(2, 16 << 10, 4);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    let j = mount(&region, &geo, Durability::Op);
    let round = || {
        j.set_digested(j.digestable()).expect("digest");
        let (w, cut) = (j.retired_word(), j.digested());
        region.store_u64(w.offset, w.encode(cut));
        region.persist(w.offset, 8).expect("persist");
        j.advance_heads(cut, || ()).expect("retire")
    };
    let mut slow = j
        .acquire(Need {
            slots: 1,
            record_bytes: 8,
            prefer: 0,
        })
        .expect("room");
    let staged = j.stage(&mut slow, &[(9, &[9; 4096])]).expect("stage");
    let old = write(&j, 7, 1);
    assert_eq!(
        (old.slots[0].buffer, round()),
        (0, 0),
        "stuck behind the slow one"
    );
    assert!(j.live_slots(j.digested()).is_empty());
    assert_eq!(j.oldest_live(), None);
    let appended = j.append(slow, vec![staged], &[]).expect("append");
    assert_eq!(j.oldest_live(), Some(appended.seq));
    assert_eq!(
        j.live_slots(appended.seq)
            .iter()
            .map(|l| l.lbn)
            .collect::<Vec<_>>(),
        [9]
    );
    assert_eq!(round(), 2);
}

/// While an append has taken its number and is not finished, nothing counts on that number: a commit
/// that covers it waits, in both senses of the word.
#[test]
fn an_unfinished_append_holds_up_commit_and_digest() {
    let (geo, len) = geometry(2, 64 << 10, 16);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Commit).expect("format");
    let j = mount(&region, &geo, Durability::Commit);
    let watched = Watched::default();
    let mut credit = j
        .acquire(Need {
            slots: 1,
            record_bytes: 100,
            prefer: 0,
        })
        .expect("room");
    let staged = j.stage(&mut credit, &[(1, &[1; 4096])]).expect("stage");
    std::thread::scope(|s| {
        let committer = |_: Published<'_>| {
            // Another lane goes on meanwhile.
            let need = Need {
                record_bytes: 8,
                prefer: 1,
                ..Need::default()
            };
            let other = j.acquire(need).expect("room");
            assert_eq!(j.append(other, vec![], &[]).expect("append").seq, 2);
            assert_eq!((j.last_seq(), j.complete_upto()), (2, 0));
            let commit = s.spawn(|| {
                watched.begin();
                assert_eq!(j.commit(None).expect("commit"), 2);
            });
            assert!(watched.until_asleep(|| commit.is_finished()), "it waits");
            assert_eq!(j.commit_ts(), 0);
        };
        let seq = j
            .append_with(credit, vec![staged].into(), &[], |_| (), committer)
            .expect("append");
        assert_eq!(seq, 1);
    });
    assert_eq!(
        (j.commit_ts(), j.complete_upto(), j.digestable()),
        (2, 2, 2)
    );
}

#[test]
fn a_damaged_superblock_word_is_not_guessed() {
    let (geo, len) = geometry(1, 16 << 10, 4);
    let region = Arc::new(Region::anonymous(len));
    Journal::format(&region, &geo, Durability::Op).expect("format");
    let fatal = [
        WordKind::Epoch,
        WordKind::Digested,
        WordKind::Retired,
        WordKind::CommitTs,
        WordKind::Head(0),
    ];
    for kind in fatal {
        let off = geo.jsb_off + kind.offset();
        let good = region.load_u64(off);
        region.store_u64(off, good ^ 1 << 20);
        let scan = Journal::scan(Arc::clone(&region), &geo);
        assert!(
            matches!(scan, Err(JournalError::Superblock(k)) if k == kind),
            "{kind:?}"
        );
        region.store_u64(off, good);
    }
    region.store_u64(geo.jsb_off + WordKind::Clean.offset(), 1);
    let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
    assert_eq!(scan.damage, [Damage::Word(WordKind::Clean)]);
    assert!(!scan.clean());
}
