//! A crash at every step of a run in which rings and lanes wrap, on memory and on a file, in both
//! durability modes; recovery is interrupted in the same way. What is acknowledged is there, the
//! state is that after some prefix of the operations, metadata and blocks agree, and nothing looks
//! like damage.

use crate::common;

use common::*;
use quayfs_crashsim::{Budget, CrashImage, Medium, Recorder};
use quayfs_journal::*;
use quayfs_layout::LINE;
use quayfs_layout::jsb::{PROPOSALS, SeqWord, WordKind};
use quayfs_layout::record::{RECORD_HEADER_BYTES, RecordHeader};
use quayfs_pmem::{Backend, Region};
use std::ops::Range;
use std::sync::Arc;

/// States after each operation, the first before any; the mark `n` acknowledges the first `n`.
struct Run {
    recorder: Recorder,
    states: Vec<State>,
    mode: Durability,
    append_bytes: u64,
}

impl Run {
    fn new(recorder: Recorder, start: State, mode: Durability) -> Self {
        Self {
            recorder,
            states: vec![start],
            mode,
            append_bytes: 0,
        }
    }

    /// Operations `from..to` of a fixed script, with digests, rounds and commits thrown in.
    fn go(&mut self, volume: &Volume, from: u64, to: u64) {
        for op in from..to {
            let lbns: Vec<u64> = match op % 5 {
                0 => vec![op % LBNS, (op + 3) % LBNS, (op + 5) % LBNS],
                1 => vec![op * 3 % LBNS],
                2 => vec![2],
                3 if op % 2 == 0 => vec![],
                3 => vec![op % LBNS, (op + 1) % LBNS],
                _ => vec![(op + 7) % LBNS],
            };
            if op % 7 == 3 {
                volume.fail(op, 1);
            }
            // One that is staged early and appended late, with a digest and a round in between.
            let late = (op % 9 == 7).then(|| {
                let credit = volume.room(1, op as usize + 1).expect("room");
                volume.begin(credit, 500 + op, &[4])
            });
            volume.write(op, &lbns);
            let done = self.acknowledge(op, &lbns);
            if let Some(append) = late {
                volume.digest();
                volume.round();
                append();
                self.acknowledge(500 + op, &[4]);
            } else if self.mode == Durability::Commit && op % 3 == 0 {
                volume.journal.commit(None).expect("commit");
                self.recorder.mark(done);
            }
            if op % 6 == 4 {
                volume.digest();
            }
            if op % 11 == 8 {
                volume.round();
            }
        }
        self.append_bytes = volume.journal.stats().append_bytes;
    }

    /// `op` is appended; in `op` that acknowledges it. Returns how many there are.
    fn acknowledge(&mut self, op: u64, lbns: &[u64]) -> u64 {
        let mut state = self.states.last().expect("never empty").clone();
        lbns.iter().for_each(|&l| state[l as usize] = op);
        self.states.push(state);
        let done = self.states.len() as u64 - 1;
        if self.mode == Durability::Op {
            self.recorder.mark(done);
        }
        done
    }

    /// `state` is that after a prefix of the operations, which contains everything acknowledged.
    fn check(&self, state: &State, image: &CrashImage) {
        let acked = image.acked().last().map_or(0, |&n| n as usize);
        let found: Vec<usize> = (0..self.states.len())
            .filter(|&n| &self.states[n] == state)
            .collect();
        // In `op` at most the operation under way can be there besides.
        let most = if self.mode == Durability::Op {
            acked + 1
        } else {
            self.states.len()
        };
        assert!(
            found.iter().any(|n| (acked..=most).contains(n)),
            "{acked} operations were acknowledged, the state is that after {found:?}\n{image}"
        );
    }
}

fn run(backend: Backend, mode: Durability, ops: u64) -> Run {
    let recorder = formatted(backend, mode);
    let volume = Volume::of_recorder(&recorder, mode);
    let mut run = Run::new(recorder, vec![0; LBNS as usize], mode);
    run.go(&volume, 1, ops + 1);
    run
}

fn crash_everywhere(backend: Backend, mode: Durability) {
    crash_all_of(&run(backend, mode, 40));
}

fn crash_all_of(run: &Run) {
    let (geo, _) = small();
    let lanes = u64::from(geo.buffers) * geo.lane_bytes;
    assert!(
        run.append_bytes > 2 * lanes,
        "lanes did not wrap: {}",
        run.append_bytes
    );
    let mut images = 0;
    for image in run.recorder.trace().explore(&Budget::SMALL) {
        let volume = Volume::of_image(&image, run.mode);
        run.check(&volume.state(&image), &image);
        images += 1;
    }
    assert!(images > 1000, "{images}");
}

#[test]
fn op_on_memory() {
    crash_everywhere(Backend::Dax, Durability::Op);
}

#[test]
fn op_on_a_file() {
    crash_everywhere(Backend::File, Durability::Op);
}

#[test]
fn commit_on_memory() {
    crash_everywhere(Backend::Dax, Durability::Commit);
}

#[test]
fn commit_on_a_file() {
    crash_everywhere(Backend::File, Durability::Commit);
}

/// Volumes that were made before there were proposals, where two drains make a commit, or before there were three
/// places of them.
fn commit_on_an_older_volume(places: u8) {
    let recorder = formatted(Backend::File, Durability::Commit);
    let (region, device) = (recorder.region(), recorder.device());
    let options = JournalOptions {
        proposals: places,
        ..options(Durability::Commit)
    };
    let (geo, _) = small();
    let volume = Volume::recover_as(geo, region, device, options, &"before any crash");
    let mut run = Run::new(recorder, vec![0; LBNS as usize], Durability::Commit);
    run.go(&volume, 1, 41);
    for place in 0..PROPOSALS as u8 {
        let proposal = geo.jsb_off + WordKind::Proposal(place).offset();
        let written = volume.region.load_u64(proposal) != 0;
        assert_eq!(written, place < places, "place {place}");
    }
    crash_all_of(&run);
}

#[test]
fn commit_of_two_drains_on_a_file() {
    commit_on_an_older_volume(0);
}

#[test]
fn commit_with_two_places_on_a_file() {
    commit_on_an_older_volume(2);
}

/// Crash, recover, crash in the middle of that, recover: the second recovery finds what the first
/// did. Then work goes on, in either mode, and crashes again.
fn crash_in_recovery(backend: Backend, mode: Durability) {
    let run = run(backend, mode, 23);
    let trace = run.recorder.trace();
    for (n, image) in trace.explore(&Budget::SMALL).enumerate() {
        if n % 61 != 7 {
            continue;
        }
        let next = if n % 2 == 0 {
            Durability::Op
        } else {
            Durability::Commit
        };
        let again = image.restart();
        let volume = Volume::of_recorder(&again, next);
        let state = volume.state(&image);
        run.check(&state, &image);
        let recovered = again.trace();
        for inner in recovered.explore(&Budget::SMALL) {
            let volume = Volume::of_image(&inner, mode);
            assert_eq!(
                volume.state(&inner),
                state,
                "{image}\nthen in recovery {inner}"
            );
        }
        again.start_here();
        let mut more = Run::new(again, state, next);
        more.go(&volume, 1000, 1005);
        for inner in more.recorder.trace().explore(&Budget::SMALL) {
            let volume = Volume::of_image(&inner, next);
            more.check(&volume.state(&inner), &inner);
        }
    }
}

#[test]
fn recovery_after_op_on_memory() {
    crash_in_recovery(Backend::Dax, Durability::Op);
}

#[test]
fn recovery_after_commit_on_memory() {
    crash_in_recovery(Backend::Dax, Durability::Commit);
}

#[test]
fn recovery_after_op_on_a_file() {
    crash_in_recovery(Backend::File, Durability::Op);
}

#[test]
fn recovery_after_commit_on_a_file() {
    crash_in_recovery(Backend::File, Durability::Commit);
}

/// The daemon dies with a record stored and not flushed (or drained); the machine lives on. Recovery
/// acts on the record, and then power fails: the record must not be lost while what was done on its
/// behalf is there.
fn killed_then_power_loss(backend: Backend, mode: Durability) {
    let (geo, _) = small();
    let script = |ops| run(backend, mode, ops);
    let (before, after) = (script(4), script(5));
    let region = before.recorder.region();
    let finished = after.recorder.region();
    if mode == Durability::Commit {
        // Everything is stored but for the number that commits it, settled or not.
        let commit_ts = geo.jsb_off + WordKind::CommitTs.offset();
        let salt = WordKind::CommitTs.salt(geo.volume_salt);
        region.store_u64(commit_ts, SeqWord::encode(4, salt));
    } else {
        // The fifth operation's payloads and headers are settled, its record is not.
        let staged = geo.slot_hdr_off..region.len() - 4096;
        region.write(
            staged.start,
            &finished.read_vec(staged.start, staged.end - staged.start),
        );
        before.recorder.start_here();
        let lanes = geo.lane_off..geo.slot_hdr_off;
        region.write(
            lanes.start,
            &finished.read_vec(lanes.start, lanes.end - lanes.start),
        );
    }
    let volume = Volume::of_recorder(&before.recorder, mode);
    let state = volume.state(&"after the kill");
    let expected = if mode == Durability::Commit {
        &before.states[4]
    } else {
        &after.states[5]
    };
    assert_eq!(&state, expected);
    before.recorder.mark(u64::MAX);
    let mut seen = [0; 2];
    for image in before.recorder.trace().explore(&Budget::SMALL) {
        let volume = Volume::of_image(&image, mode);
        let found = volume.state(&image);
        if image.acked().last() == Some(&u64::MAX) {
            assert_eq!(&found, expected, "{image}");
        }
        // Either all of the record or nothing, and never part of what follows from it.
        assert!(
            &found == expected || before.states.contains(&found),
            "{found:?}\n{image}"
        );
        seen[usize::from(&found == expected)] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

#[test]
fn killed_then_power_loss_on_memory() {
    killed_then_power_loss(Backend::Dax, Durability::Op);
    killed_then_power_loss(Backend::Dax, Durability::Commit);
}

#[test]
fn killed_then_power_loss_on_a_file() {
    killed_then_power_loss(Backend::File, Durability::Op);
    killed_then_power_loss(Backend::File, Durability::Commit);
}

/// A header is torn when power fails. The same operation in the next life is torn as well, in all ways
/// there are: nothing ever looks like a record of the first life.
fn torn_twice(backend: Backend, mode: Durability) {
    const FEW: u64 = 4;
    let (geo, _) = small();
    let mut whole = 0;
    for word in 1..7 {
        let recorder = formatted(backend, mode);
        let volume = Volume::of_recorder(&recorder, mode);
        (1..FEW).for_each(|op| drop(volume.write(op, &[])));
        volume.journal.commit(None).expect("commit");
        volume.write(FEW, &[]);
        drop(volume);
        let region = recorder.region();
        let mut header = [0; RECORD_HEADER_BYTES];
        let lines = (geo.lane_off..geo.slot_hdr_off).step_by(RECORD_HEADER_BYTES);
        let last = lines.filter(|&off| {
            region.read(off, &mut header);
            let (lane, pos) = (
                (off - geo.lane_off) / geo.lane_bytes,
                (off - geo.lane_off) % geo.lane_bytes,
            );
            RecordHeader::decode(&header, geo.volume_salt, lane as u16, 2, pos)
                .is_some_and(|h| h.seq == FEW)
        });
        let torn = last.last().expect("the last record") + 8 * word;
        let was = region.load_u64(torn);
        region.store_u64(torn, !was);
        recorder.start_here();
        let volume = Volume::of_recorder(&recorder, mode);
        volume.write(FEW, &[]);
        assert_eq!(region.load_u64(torn), was, "not the same operation");
        volume.journal.commit(None).expect("commit");
        drop(volume);
        let trace = recorder.trace();
        // A tear that matters is one of many.
        for seed in 0..16 {
            let budget = Budget {
                picks: 16,
                seed,
                ..Budget::SMALL
            };
            for image in trace.explore(&budget) {
                let scan = Journal::scan(Arc::new(image.region()), &geo).expect("scan");
                assert_eq!(scan.damage, [], "word {word}\n{image}");
                whole += usize::from(scan.max_seq_seen == FEW);
            }
        }
    }
    assert!(whole > 0);
}

#[test]
fn headers_torn_twice() {
    for mode in [Durability::Op, Durability::Commit] {
        torn_twice(Backend::Dax, mode);
        torn_twice(Backend::File, mode);
    }
}

/// A drain that fails stops the journal; what was acknowledged before survives.
#[test]
fn a_failed_drain_stops_everything() {
    for mode in [Durability::Op, Durability::Commit] {
        let mut run = run(Backend::File, mode, 6);
        let (recorder, acked) = (&run.recorder, run.states.len() as u64 - 1);
        let volume = {
            // Mounted again, so that there is a volume at hand to go on with.
            let v = Volume::of_recorder(recorder, mode);
            v.journal.commit(None).expect("commit");
            recorder.mark(acked);
            v
        };
        let j = &volume.journal;
        let mut credit = j
            .acquire(Need {
                slots: 1,
                record_bytes: 24,
                prefer: 0,
            })
            .expect("room");
        recorder.fail_drains(5);
        let block = content(1, 77);
        let staged = j.stage(&mut credit, &[(1, &block)]).expect("no drain yet");
        let items: Vec<u8> = [77u64, 1, 1].iter().flat_map(|w| w.to_le_bytes()).collect();
        let appended = j.append(credit, vec![staged], &items);
        if mode == Durability::Op {
            assert!(matches!(appended, Err(JournalError::Pmem(_))));
        } else {
            let appended = appended.expect("no drain yet");
            assert!(matches!(
                j.commit(Some(appended.seq)),
                Err(JournalError::Pmem(_))
            ));
            assert!(j.commit_ts() < appended.seq);
            assert!(matches!(j.commit(None), Err(JournalError::Stopped)));
        }
        let mut state = run.states.last().expect("never empty").clone();
        state[1] = 77;
        run.states.push(state);
        assert!(matches!(j.check(), Err(JournalError::Stopped)));
        assert_eq!(
            j.acquire(Need::default()).err(),
            Some(AcquireError::Refused)
        );
        assert!(j.set_digested(j.last_seq()).is_err() && j.set_clean(None).is_err());
        for image in run.recorder.trace().explore(&Budget::SMALL) {
            let v = Volume::of_image(&image, mode);
            run.check(&v.state(&image), &image);
        }
    }
}

/// In `op` an append whose drain fails may or may not have happened: never acknowledged, never
/// digested, its slots never reused.
#[test]
fn an_append_whose_drain_fails_is_in_doubt() {
    let recorder = formatted(Backend::File, Durability::Op);
    let volume = Volume::of_recorder(&recorder, Durability::Op);
    let j = &volume.journal;
    let mut credit = j
        .acquire(Need {
            slots: 1,
            record_bytes: 24,
            prefer: 0,
        })
        .expect("room");
    let block = content(1, 9);
    let staged = j.stage(&mut credit, &[(1, &block)]).expect("stage");
    recorder.fail_drains(5);
    let items: Vec<u8> = [9u64, 1, 1].iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut published = 0;
    let result = j.append_with(
        credit,
        vec![staged].into(),
        &items,
        |_| (),
        |_| published += 1,
    );
    assert!(matches!(result, Err(JournalError::Pmem(_))));
    assert_eq!((published, j.last_seq(), j.complete_upto()), (0, 1, 0));
    assert_eq!(j.stats().abandoned, 0);
    assert_eq!(j.advance_heads(0, || ()).expect("nothing passes"), 0);
    let mut found = [0, 0];
    for image in recorder.trace().explore(&Budget::SMALL) {
        let v = Volume::of_image(&image, Durability::Op);
        found[usize::from(v.state(&image)[1] == 9)] += 1;
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
}

/// A slot whose committed word was stored when its record rotted is not brought to life by the digested_seq of the
/// next life, whatever a crash leaves of the recovery that gave the record up.
#[test]
fn a_slot_of_a_record_that_is_given_up_stays_dead() {
    let recorder = formatted(Backend::Dax, Durability::Op);
    let (region, geo) = (recorder.region(), small().0);
    let volume = Volume::of_recorder(&recorder, Durability::Op);
    let first = volume.write(1, &[1]);
    volume.digest();
    let second = volume.write(2, &[2]);
    let journal = &volume.journal;
    let record = journal.read_records(first.seq, second.seq, 9, 9);
    journal.mark_committed(record.expect("records").get(0));
    // The third one is what tells the second one's rot from the end of the log.
    let third = volume.write(2, &[3]);
    let lane = u64::from(second.slots[0].buffer) * geo.lane_bytes;
    let bytes = region.read_vec(geo.lane_off + lane, geo.lane_bytes);
    let items = [2u64, 1, 2].map(u64::to_le_bytes).concat();
    let at = bytes.windows(24).position(|w| w == items);
    let at = geo.lane_off + lane + at.expect("the record") as u64;
    region.store_u64(at, !0);
    recorder.start_here();

    let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
    assert!(!scan.damage.is_empty());
    region.drain().expect("drain");
    let to = RecoveredTo {
        digested: first.seq,
    };
    scan.into_journal(to, options(Durability::Op))
        .expect("damage justifies what is left");
    let mut images = 0;
    for image in recorder.trace().explore(&Budget::SMALL) {
        let scan = Journal::scan(Arc::new(image.region()), &geo).expect("scan");
        let live: Vec<u64> = scan.live.iter().map(|l| l.lbn).collect();
        let given_up = scan.digested >= third.seq;
        assert!(!given_up || live == [1], "{live:?} live after {image}");
        images += u64::from(given_up);
    }
    assert!(images > 1, "{images}");
}

/// Whether this operation of the script only stages blocks and appends a record, and in `commit` is committed.
fn is_plain(op: u64, mode: Durability) -> bool {
    let stages = !(op % 5 == 3 && op.is_multiple_of(2));
    let alone = op % 7 != 3 && op % 9 != 7 && op % 6 != 4 && op % 11 != 8;
    stages && alone && (mode == Durability::Op || op.is_multiple_of(3))
}

/// A daemon died with its last operation stored, and what follows no drain of that is not settled: with `op` all of it, with
/// `commit` the superblock. What a scan has read of it is durable with the next drain, since everything that follows builds
/// on it.
#[test]
fn what_a_scan_has_read_is_durable_with_the_next_drain() {
    for (backend, mode) in [
        (Backend::Dax, Durability::Op),
        (Backend::Dax, Durability::Commit),
        (Backend::File, Durability::Op),
        (Backend::File, Durability::Commit),
    ] {
        let wraps = (2..90)
            .filter(|op| is_plain(*op, mode))
            .filter(|op| dies_unsettled(backend, mode, *op))
            .count();
        assert!(wraps > 0, "no record goes on at the beginning of its lane");
    }
}

/// The daemon dies with this operation unsettled, and its journal is scanned. Whether the record lies at both ends of its
/// lane.
fn dies_unsettled(backend: Backend, mode: Durability, op: u64) -> bool {
    let (geo, _) = small();
    let (before, after) = (run(backend, mode, op - 1), run(backend, mode, op));
    let (region, finished) = (before.recorder.region(), after.recorder.region());
    let line = |of: &Region, off| of.read_vec(off, LINE as u64);
    let stored = |area: Range<u64>| -> Vec<u64> {
        let differs = |off: &u64| line(&finished, *off) != line(&region, *off);
        let all: Vec<u64> = area.step_by(LINE).filter(differs).collect();
        all.iter()
            .for_each(|off| region.write(*off, &line(&finished, *off)));
        assert!(!all.is_empty(), "operation {op} on {backend} in {mode:?}");
        all
    };
    let slots_end = geo.slot_data_off + u64::from(geo.buffers) * geo.slots_per_buffer * 4096;
    let home = slots_end..region.len();
    if home
        .step_by(LINE)
        .any(|off| line(&finished, off) != line(&region, off))
    {
        // To have room for it, earlier ones were digested.
        return false;
    }
    before.recorder.start_here();
    let record = stored(geo.lane_off..geo.slot_hdr_off);
    stored(geo.slot_hdr_off..geo.slot_data_off);
    stored(geo.slot_data_off..slots_end);
    if mode == Durability::Commit {
        before.recorder.start_here();
        stored(geo.jsb_off..geo.lane_off);
    }
    let left = || {
        let trace = before.recorder.trace();
        let now = trace.points().last().expect("a point for every moment");
        trace.in_flight(now)
    };
    assert!(!left().is_empty());
    Journal::scan(Arc::clone(&region), &geo).expect("scan");
    region.drain().expect("drain");
    let left = left();
    assert!(left.is_empty(), "{left:?} of {op} on {backend} in {mode:?}");
    let (first, last) = (record[0], record[record.len() - 1]);
    last - first > record.len() as u64 * LINE as u64
}

/// A life in `op` does not look at proposals. One that has rotted meanwhile is not found as damage by the life after the next,
/// wherever power fails while the next one begins.
#[test]
fn a_proposal_that_rots_where_none_counts_is_gone_in_time() {
    for backend in [Backend::Dax, Backend::File] {
        let recorder = formatted(backend, Durability::Op);
        let (region, geo) = (recorder.region(), small().0);
        region.store_u64(geo.jsb_off + WordKind::Proposal(1).offset(), 1 << 17);
        recorder.start_here();
        Volume::of_recorder(&recorder, Durability::Commit);
        let mut images = 0;
        for image in recorder.trace().explore(&Budget::SMALL) {
            let scan = Journal::scan(Arc::new(image.region()), &geo).expect("scan");
            assert!(scan.damage.is_empty(), "{:?} after {image}", scan.damage);
            images += 1;
        }
        assert!(images > 1, "{images}");
    }
}

/// When a call returns that promises durability, nothing that it or what it depends on has stored is
/// still in flight: ring space in particular comes back only when the heads are durable (ordering 1).
#[test]
fn nothing_promised_is_left_in_flight() {
    for (backend, mode) in [
        (Backend::Dax, Durability::Op),
        (Backend::File, Durability::Op),
        (Backend::Dax, Durability::Commit),
        (Backend::File, Durability::Commit),
    ] {
        let (geo, len) = small();
        let recorder = Recorder::new(len, LBNS, backend);
        let settled = |what: &str| {
            let trace = recorder.trace();
            let now = trace.points().last().expect("a point for every moment");
            let mut left = trace.in_flight(now);
            if backend == Backend::File && what == "commit" {
                // The records have what slot headers say. Whatever else is to follow digested_seq drains everything.
                let headers = geo.slot_hdr_off..geo.slot_data_off;
                left.retain(|f| f.medium != Medium::Pmem || !headers.contains(&f.off));
            }
            assert!(
                left.is_empty(),
                "{what} on {backend} in {mode:?} leaves {left:?}"
            );
        };
        Journal::format(&recorder.region(), &geo, mode).expect("format");
        recorder.region().drain().expect("drain");
        settled("format and a drain");
        let volume = Volume::of_recorder(&recorder, mode);
        settled("into_journal");
        for op in 1..6 {
            volume.write(op, &[op, op + 1]);
            if mode == Durability::Op {
                settled("append");
            }
        }
        volume.journal.commit(Some(3)).expect("commit");
        volume.journal.commit(None).expect("commit");
        settled("commit");
        if backend == Backend::Dax {
            // Its slots are another operation's next, whose content must not be overtaken by this.
            volume.fail(7, 1);
            settled("an operation that is given up");
        }
        volume.digest();
        settled("set_digested");
        volume.round();
        settled("advance_heads");
        volume.journal.set_clean(None).expect("clean");
        settled("set_clean");
    }
}
