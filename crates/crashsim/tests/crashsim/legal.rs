//! The images are exactly those that an independent and slow reading of the persistence model allows.

use proptest::prelude::*;
use quayfs_crashsim::{Budget, Recorder};
use quayfs_pmem::{Backend, Region, atoms, lines};
use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};

/// Two lines, so that their independence shows and few images are possible.
const LEN: u64 = 128;

#[derive(Clone, Debug)]
enum Op {
    Write { off: u64, len: u64, nt: bool },
    Flush { off: u64, len: u64 },
    Fence,
    Drain,
}

#[derive(Clone, Debug)]
struct Step {
    /// Done by the other of two threads.
    other: bool,
    op: Op,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = |most: u64| (0..LEN - 1, 1..=most).prop_map(|(off, len)| (off, len.min(LEN - off)));
    let op = prop_oneof![
        4 => (range(12), any::<bool>()).prop_map(|((off, len), nt)| Op::Write { off, len, nt }),
        2 => (0..16_u64).prop_map(|word| Op::Write { off: word * 8, len: 8, nt: false }),
        2 => range(80).prop_map(|(off, len)| Op::Flush { off, len }),
        2 => Just(Op::Fence),
        1 => Just(Op::Drain),
    ];
    let step = (any::<bool>(), op).prop_map(|(other, op)| Step { other, op });
    proptest::collection::vec(step, 1..9)
}

/// The content that step `i` writes: never zero, and different from others.
fn content(i: usize, off: u64, len: u64) -> Vec<u8> {
    (off..off + len)
        .map(|at| 1 + ((i as u64 * 29 + at * 3) % 250) as u8)
        .collect()
}

fn perform(region: &Region, i: usize, op: &Op) {
    match op {
        Op::Write {
            off,
            len,
            nt: false,
        } => region.write(*off, &content(i, *off, *len)),
        Op::Write { off, len, nt: true } => region.write_nt(*off, &content(i, *off, *len)),
        Op::Flush { off, len } => region.flush(*off, *len),
        Op::Fence => region.fence(),
        Op::Drain => region.drain().unwrap(),
    }
}

fn run(recorder: &Recorder, steps: &[Step]) {
    let region = recorder.region();
    let (to_other, work) = channel::<(usize, Op, Sender<()>)>();
    std::thread::scope(|scope| {
        let other = recorder.region();
        scope.spawn(move || {
            for (i, op, done) in work {
                perform(&other, i, &op);
                done.send(()).unwrap();
            }
        });
        for (i, step) in steps.iter().enumerate() {
            if step.other {
                let (done, wait) = channel();
                to_other.send((i, step.op.clone(), done)).unwrap();
                wait.recv().unwrap();
            } else {
                perform(&region, i, &step.op);
            }
        }
        drop(to_other);
    });
}

/// Whether what step `i` stored at `off` is settled by the steps up to `end`.
fn is_settled(backend: Backend, steps: &[Step], i: usize, off: u64, end: usize) -> bool {
    let later = || (i + 1..end).map(|j| (j, &steps[j]));
    if backend == Backend::File {
        return later().any(|(_, step)| matches!(step.op, Op::Drain));
    }
    let fenced_by = |thread: bool, after: usize| {
        (after + 1..end)
            .any(|j| steps[j].other == thread && matches!(steps[j].op, Op::Fence | Op::Drain))
    };
    if matches!(steps[i].op, Op::Write { nt: true, .. }) {
        return fenced_by(steps[i].other, i);
    }
    later().any(|(j, step)| match step.op {
        Op::Flush { off: at, len } => {
            lines(at, len).any(|line| line == off / 64 * 64) && fenced_by(step.other, j)
        }
        _ => false,
    })
}

/// One aligned store of a line.
struct Atom {
    off: u64,
    bytes: Vec<u8>,
    ordered: bool,
    settled: bool,
}

/// All that a crash after `end` steps may leave of one line, by trying every subset of its atoms.
fn legal_line(backend: Backend, steps: &[Step], end: usize, start: u64) -> BTreeSet<Vec<u8>> {
    let mut all = Vec::new();
    for (i, step) in steps[..end].iter().enumerate() {
        let Op::Write { off, len, nt } = step.op else {
            continue;
        };
        let bytes = content(i, off, len);
        for (at, n) in atoms(off, len).filter(|(at, _)| (start..start + 64).contains(at)) {
            all.push(Atom {
                off: at - start,
                bytes: bytes[(at - off) as usize..][..n as usize].to_vec(),
                ordered: backend != Backend::File && !nt,
                settled: is_settled(backend, steps, i, at, end),
            });
        }
    }
    // What is settled is no choice, which keeps the number of subsets small.
    let open: Vec<usize> = (0..all.len()).filter(|a| !all[*a].settled).collect();
    let mut images = BTreeSet::new();
    for subset in 0..1_u32 << open.len() {
        let chosen = |a: usize| {
            all[a].settled
                || open
                    .iter()
                    .position(|o| *o == a)
                    .is_some_and(|n| subset >> n & 1 == 1)
        };
        let mut ordered = open.iter().filter(|a| all[**a].ordered);
        let prefix = !ordered.any(|a| !chosen(*a)) || !ordered.any(|a| chosen(*a));
        if prefix {
            let mut image = vec![0; 64];
            for (_, atom) in all.iter().enumerate().filter(|(a, _)| chosen(*a)) {
                image[atom.off as usize..][..atom.bytes.len()].copy_from_slice(&atom.bytes);
            }
            images.insert(image);
        }
    }
    images
}

fn legal(backend: Backend, steps: &[Step], end: usize) -> BTreeSet<Vec<u8>> {
    let second = legal_line(backend, steps, end, 64);
    let first = legal_line(backend, steps, end, 0);
    first
        .iter()
        .flat_map(|a| second.iter().map(|b| [&a[..], b].concat()))
        .collect()
}

/// Few enough open atoms for trying all subsets.
fn is_small(steps: &[Step]) -> bool {
    let count = |start: u64| {
        let in_line = |op: &Op| match op {
            Op::Write { off, len, .. } => atoms(*off, *len)
                .filter(|(at, _)| at / 64 * 64 == start)
                .count(),
            _ => 0,
        };
        steps.iter().map(|step| in_line(&step.op)).sum::<usize>()
    };
    count(0) <= 9 && count(64) <= 9
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..Default::default() })]

    #[test]
    fn all_legal_images_are_made_and_no_others(steps in steps().prop_filter("small", |s| is_small(s))) {
        for backend in [Backend::Dax, Backend::File] {
            let recorder = Recorder::new(LEN, 1, backend);
            run(&recorder, &steps);
            let trace = recorder.trace();
            prop_assert_eq!(recorder.len(), steps.len());
            for point in trace.points() {
                let expected = legal(backend, &steps, point.events());
                let budget = Budget { exhaustive: 1 << 20, picks: 0, random: 0, seed: 0 };
                let made: BTreeSet<_> = trace.images(point, &budget).map(|i| i.pmem()).collect();
                prop_assert!(made == expected, "{} of {} at {}", made.len(), expected.len(), point.events());
                let budget = Budget { exhaustive: 1, picks: 4, random: 8, seed: 3 };
                for image in trace.images(point, &budget) {
                    prop_assert!(expected.contains(&image.pmem()), "not legal: {}", image);
                }
            }
        }
    }
}
