//! Crashes while several threads append to several lanes and digest and rounds run beside them: each
//! thread's operations survive as a prefix that contains what it was acknowledged. This is where
//! numbers with holes come from.

use crate::common;

use common::*;
use quayfs_crashsim::{Budget, CrashImage};
use quayfs_journal::*;
use quayfs_pmem::Backend;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const THREADS: u64 = 3;
const OPS: u64 = 12;

/// Operation `n` (from 1) of `thread` writes one of its two blocks, or both.
fn lbns(thread: u64, n: u64) -> Vec<u64> {
    match n % 3 {
        0 => vec![2 * thread, 2 * thread + 1],
        k => vec![2 * thread + k - 1],
    }
}

fn op_number(thread: u64, n: u64) -> u64 {
    thread << 16 | n
}

/// What the blocks of `thread` say after its first `n` operations.
fn state_after(thread: u64, n: u64) -> [u64; 2] {
    let mut state = [0; 2];
    for k in 1..=n {
        for lbn in lbns(thread, k) {
            state[(lbn - 2 * thread) as usize] = op_number(thread, k);
        }
    }
    state
}

fn check(state: &State, mode: Durability, image: &CrashImage) {
    for t in 0..THREADS {
        let mine: Vec<u64> = image
            .acked()
            .iter()
            .filter(|m| **m >> 16 == t)
            .copied()
            .collect();
        let acked = mine.last().map_or(0, |m| m & 0xffff);
        let most = if mode == Durability::Op {
            acked + 1
        } else {
            OPS
        };
        let found = [state[2 * t as usize], state[2 * t as usize + 1]];
        assert!(
            (acked..=most).any(|n| state_after(t, n) == found),
            "thread {t}: {found:x?} after {acked} acknowledged\n{image}"
        );
    }
}

fn crash(backend: Backend, mode: Durability) {
    let (geo, len) = geometry(3, 4096, 6);
    let recorder = formatted_with((geo, len + 4096), backend, mode);
    let volume = Volume::recover_with(geo, recorder.region(), recorder.device(), mode, &"start");
    let done = AtomicBool::new(false);
    let (v, r, done) = (&volume, &recorder, &done);
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..THREADS)
            .map(|t| {
                s.spawn(move || {
                    for n in 1..=OPS {
                        let lbns = lbns(t, n);
                        let need = v.need(lbns.len() as u32, t as usize);
                        let credit = v
                            .journal
                            .acquire_blocking(need, Duration::MAX)
                            .expect("room");
                        let append = v.begin(credit, op_number(t, n), &lbns);
                        std::thread::yield_now();
                        let seq = append().seq;
                        if mode == Durability::Commit && n % 4 != 0 {
                            continue;
                        }
                        v.journal.commit(Some(seq)).expect("commit");
                        r.mark(op_number(t, n));
                    }
                })
            })
            .collect();
        s.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                v.journal.commit(None).expect("commit");
                v.digest();
                v.round();
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
    });
    for image in recorder.trace().explore(&Budget::SMALL) {
        let (region, device) = (Arc::new(image.region()), Arc::new(image.device()));
        let volume = Volume::recover_with(geo, region, device, mode, &image);
        check(&volume.state(&image), mode, &image);
    }
}

#[test]
fn op_on_memory() {
    crash(Backend::Dax, Durability::Op);
}

#[test]
fn op_on_a_file() {
    crash(Backend::File, Durability::Op);
}

#[test]
fn commit_on_memory() {
    crash(Backend::Dax, Durability::Commit);
}

#[test]
fn commit_on_a_file() {
    crash(Backend::File, Durability::Commit);
}
