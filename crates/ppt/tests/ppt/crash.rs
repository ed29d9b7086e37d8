//! A crash at every store of a series of operations, on memory and on a file, then attach: the map
//! is what it was before or after the operation that was under way, and what was acknowledged is
//! there. Attaching itself is interrupted in the same way.

use crate::common;

use std::collections::HashSet;
use std::sync::Arc;

use common::{Event, Medium, Tape, digest};
use quayfs_layout::l2p::ZERO_CRC;
use quayfs_pmem::{Backend, Region};
use quayfs_ppt::{BlockState, Mapping, Ppt, PptError, PptGeometry};

const BLOCKS: u64 = 40;
const WORD: u64 = 8;
const LEN: usize = 4096 + 4096 + 512;

fn geometry() -> PptGeometry {
    PptGeometry {
        volume_salt: 0xfeed_beef_0bad_cafe,
        l2p_map_off: 64,
        l2p_crc_off: 384,
        blocks: BLOCKS,
        l2p_log_off: 576,
        l2p_log_lanes: 3,
        l2p_lane_bytes: 512,
    }
}

/// What the page table says, and the word outside of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    map: Vec<(u64, bool, u32)>,
    word: u64,
}

fn state(region: &Region, ppt: &Ppt) -> State {
    let key = |m: Mapping| (m.pbn, m.state == BlockState::Written, m.crc);
    let map = ppt.read_run(0, BLOCKS as usize);
    let map = map
        .into_iter()
        .map(|entry| key(entry.expect("an intact entry")))
        .collect();
    State {
        map,
        word: region.load_u64(WORD),
    }
}

enum Op {
    /// Swaps, checksums and the word in one transaction, with this many workers.
    Txn(Vec<(u64, u64)>, u64, usize),
    /// A transaction of the word alone.
    Word(u64),
    Zero(Vec<u64>),
    Direct(Vec<u64>),
}

fn operations() -> Vec<Op> {
    vec![
        Op::Txn(vec![(0, 20), (1, 21), (9, 30)], 100, 1),
        Op::Direct(vec![33, 34, 2]),
        Op::Txn(vec![(1, 22), (0, 1)], 101, 3),
        Op::Zero(vec![20, 21, 30, 33]),
        Op::Word(102),
        Op::Txn((0..16).map(|n| (n, 24 + (n * 5) % 16)).collect(), 103, 2),
        Op::Zero(vec![3, 7, 35]),
        Op::Txn(vec![(3, 3), (4, 5)], 104, 2),
    ]
}

impl Op {
    fn run(&self, region: &Region, ppt: &Ppt) -> Result<(), PptError> {
        match self {
            Op::Txn(swaps, word, workers) => {
                let mut txn = ppt.begin()?;
                for &(a, b) in swaps {
                    txn.swap(a, b)?;
                    txn.set_written(a, (word * 1000 + a) as u32)?;
                    txn.set_zero(b)?;
                }
                txn.set_retired(WORD, *word)?;
                txn.commit(*workers)?;
            }
            Op::Word(word) => {
                let mut txn = ppt.begin()?;
                txn.set_retired(WORD, *word)?;
                txn.commit(1)?;
            }
            Op::Zero(lbns) => ppt.zero(lbns)?,
            Op::Direct(lbns) => {
                let blocks: Vec<_> = lbns.iter().map(|&lbn| (lbn, 7000 + lbn as u32)).collect();
                ppt.write_direct(&blocks)?;
                // As the record does that lets a file refer to them.
                region.drain()?;
            }
        }
        Ok(())
    }

    fn is_atomic(&self) -> bool {
        matches!(self, Op::Txn(..) | Op::Word(_))
    }

    /// Whether `now` is possible after a crash in the middle of this operation.
    fn allows(&self, now: &State, before: &State, after: &State) -> bool {
        if self.is_atomic() {
            return now == before || now == after;
        }
        let direct = matches!(self, Op::Direct(_));
        let zero = matches!(self, Op::Zero(_));
        let entry = |n: usize| {
            let (now, before, after) = (now.map[n], before.map[n], after.map[n]);
            // Either may be durable before the other, as documented.
            let torn = direct
                && before != after
                && ((now.0, now.1) == (after.0, after.1) || now.2 == after.2);
            // No file has what is zeroed: its checksum may go before its entry.
            let unsummed = zero && before != after && now == (before.0, before.1, ZERO_CRC);
            now == before || now == after || torn || unsummed
        };
        now.word == before.word && (0..now.map.len()).all(entry)
    }
}

/// A tape of the operations, and the states before the first and after each of them.
fn record(backend: Backend, image: &[u8], ops: &[Op]) -> (Vec<Event>, Vec<State>) {
    let (tape, region) = Tape::region(backend, image);
    let (ppt, _) = Ppt::attach(Arc::clone(&region), geometry()).expect("attach");
    let mut states = vec![state(&region, &ppt)];
    for (n, op) in ops.iter().enumerate() {
        op.run(&region, &ppt).expect("an operation without faults");
        tape.ack(n);
        states.push(state(&region, &ppt));
    }
    (tape.take(), states)
}

fn formatted() -> Vec<u8> {
    // Not zeros: what format does not write is not to matter.
    let region = Region::from_image(vec![0xa5; LEN], None, Backend::Dax);
    region.store_u64(WORD, 99);
    Ppt::format(&region, &geometry()).expect("format");
    region.read_vec(0, LEN as u64)
}

struct Outcome {
    images: usize,
    undone: usize,
    violation: Option<String>,
}

/// Crashes at every event of the tape. `interrupt`: crash again at every event of each attach.
fn crash_everywhere(
    backend: Backend,
    base: &[u8],
    tape: &[Event],
    ops: &[Op],
    states: &[State],
    interrupt: bool,
) -> Outcome {
    let mut medium = Medium::new(backend, base.to_vec());
    let mut done = 0;
    let mut seen = HashSet::new();
    let mut interrupted = HashSet::new();
    let mut outcome = Outcome {
        images: 0,
        undone: 0,
        violation: None,
    };
    for (at, event) in tape.iter().enumerate() {
        if let Event::Ack(op) = event {
            done = op + 1;
        }
        medium.step(event);
        medium.images(64, 12, at as u64, |image| {
            // The same image under the same expectation need not be tried twice.
            if outcome.violation.is_some() || !seen.insert((digest(&image), done)) {
                return;
            }
            outcome.images += 1;
            let fail = |what: String| Some(format!("{backend}, event {at} {event:?}: {what}"));
            let (again, region) = Tape::region(backend, &image);
            let (ppt, report) = match Ppt::attach(Arc::clone(&region), geometry()) {
                Ok(attached) => attached,
                Err(error) => return outcome.violation = fail(error.to_string()),
            };
            let now = state(&region, &ppt);
            let legal = match ops.get(done) {
                Some(op) => op.allows(&now, &states[done], &states[done + 1]),
                None => now == states[done],
            };
            if !legal || report.damage.is_some() {
                return outcome.violation = fail(format!("{report:?} {now:?}"));
            }
            if !ppt.verify().expect("verify").is_sound() {
                return outcome.violation = fail("not a permutation".to_owned());
            }
            outcome.undone += usize::from(report.undone > 0 || report.restored_word.is_some());
            // Once for each operation and amount of work that the attach had to do.
            let undone = region.read_vec(0, LEN as u64);
            let differ = image.iter().zip(&undone).filter(|(a, b)| a != b).count();
            let key = (done, differ / 16);
            if interrupt && report.undone > 0 && interrupted.insert(key) {
                let what = crash_in_attach(backend, &image, &again.take(), &now);
                outcome.violation = what.and_then(fail);
            }
        });
    }
    outcome
}

/// Crashes at every event of an attach; the next attach must come to the same state.
fn crash_in_attach(
    backend: Backend,
    image: &[u8],
    tape: &[Event],
    expected: &State,
) -> Option<String> {
    let mut medium = Medium::new(backend, image.to_vec());
    let mut violation = None;
    for (at, event) in tape.iter().enumerate() {
        medium.step(event);
        medium.images(16, 6, at as u64, |image| {
            let region = Arc::new(Region::from_image(image, None, backend));
            match Ppt::attach(Arc::clone(&region), geometry()) {
                Ok((ppt, report)) if report.damage.is_none() => {
                    let now = state(&region, &ppt);
                    if now != *expected {
                        violation = Some(format!("attach, event {at} {event:?}: {now:?}"));
                    }
                }
                other => violation = Some(format!("attach, event {at} {event:?}: {other:?}")),
            }
        });
    }
    violation
}

#[test]
fn a_crash_at_every_store_leaves_before_or_after() {
    let (base, ops) = (formatted(), operations());
    for backend in [Backend::Dax, Backend::File] {
        let (tape, states) = record(backend, &base, &ops);
        let distinct: HashSet<_> = states.iter().collect();
        assert_eq!(
            distinct.len(),
            ops.len() + 1,
            "every operation changes something"
        );
        let outcome = crash_everywhere(backend, &base, &tape, &ops, &states, true);
        assert_eq!(outcome.violation, None);
        assert!(
            outcome.images > 500,
            "{backend}: only {} images",
            outcome.images
        );
        assert!(
            outcome.undone > 100,
            "{backend}: only {} were undone",
            outcome.undone
        );
    }
}

/// Nothing is left of what a freed block held: neither where it is nor what its checksum was.
#[test]
fn a_zeroed_checksum_is_durable_with_its_entry() {
    // Two lines of checksums.
    let lbns = [3, 35];
    let ops = [Op::Direct(lbns.to_vec()), Op::Zero(lbns.to_vec())];
    for backend in [Backend::Dax, Backend::File] {
        let base = formatted();
        let (tape, _) = record(backend, &base, &ops);
        let mut medium = Medium::new(backend, base);
        tape.iter().for_each(|event| medium.step(event));
        let mut images = 0;
        medium.images(16, 6, 0, |image| {
            let region = Arc::new(Region::from_image(&image, None, backend));
            let (ppt, _) = Ppt::attach(region, geometry()).expect("attach");
            assert!(lbns.iter().all(|lbn| ppt.is_zeroed(*lbn)), "{backend}");
            images += 1;
        });
        assert!(images > 0);
    }
}

/// Every drain of the operations is needed: without it some crash breaks what was promised. So the
/// test above can fail, and none of the edges is there for show.
#[test]
fn without_any_one_edge_some_crash_is_caught() {
    let base = formatted();
    // Two of each, so that a lost edge can meet leftovers of the operation before.
    let ops = || {
        vec![
            Op::Txn(vec![(0, 20), (9, 30)], 100, 1),
            Op::Txn(vec![(0, 21), (10, 31)], 101, 2),
            Op::Zero(vec![0, 10]),
            Op::Direct(vec![33]),
        ]
    };
    let names = ["A", "B", "C", "A", "B", "C", "of zero", "of the caller"];
    for backend in [Backend::Dax, Backend::File] {
        let (tape, states) = record(backend, &base, &ops());
        // The first drain of all is that of attach, which closes what was open.
        let drains: Vec<usize> = (0..tape.len())
            .filter(|&n| matches!(tape[n], Event::Drain { .. }))
            .skip(1)
            .collect();
        assert_eq!(drains.len(), names.len());
        for (&drain, name) in drains.iter().zip(names) {
            let mut tape = tape.clone();
            tape.remove(drain);
            let outcome = crash_everywhere(backend, &base, &tape, &ops(), &states, false);
            assert!(
                outcome.violation.is_some(),
                "{backend}: edge {name} at {drain} is not needed"
            );
        }
    }
}

/// Attach closes the generation that was open even if nothing of it counts: else records that are
/// left over from it could be taken for those of the next transaction.
#[test]
fn leftovers_of_an_abandoned_transaction_never_count() {
    let base = formatted();
    let first = [Op::Txn((0..12).map(|n| (n, 20 + n)).collect(), 100, 1)];
    let (tape, _) = record(Backend::Dax, &base, &first);
    let mut medium = Medium::new(Backend::Dax, base);
    let mut images = Vec::new();
    for event in &tape {
        medium.step(event);
        if matches!(event, Event::Store { nt: true, .. }) {
            medium.images(0, 4, 1, |image| images.push(image));
        }
    }
    assert!(images.len() > 10);
    for image in images.iter().step_by(5) {
        // A smaller transaction that touches none of the same entries, after a change by single
        // stores that an undo of the abandoned one would revert.
        let ops = [Op::Direct(vec![1, 2]), Op::Txn(vec![(33, 34)], 200, 1)];
        let (tape, states) = record(Backend::Dax, image, &ops);
        let outcome = crash_everywhere(Backend::Dax, image, &tape, &ops, &states, false);
        assert_eq!(outcome.violation, None);
    }
}
