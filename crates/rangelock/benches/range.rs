//! Cost of a lock and unlock: uncontended, among other holders, and with two threads, beside the
//! whole-file policy and the `rangemap` baseline.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use quayfs_rangelock::baseline::RangeMapLock;
use quayfs_rangelock::{Policy, RangeLock};

fn uncontended(c: &mut Criterion) {
    let mut group = c.benchmark_group("uncontended");
    let lock = RangeLock::new();
    group.bench_function("read", |b| b.iter(|| drop(lock.read(black_box(0..4096)))));
    group.bench_function("write", |b| b.iter(|| drop(lock.write(black_box(0..4096)))));
    let baseline = RangeMapLock::new();
    group.bench_function("write/rangemap", |b| {
        b.iter(|| drop(baseline.write(black_box(0..4096))));
    });
    group.finish();
}

fn among_holders(c: &mut Criterion) {
    let mut group = c.benchmark_group("among_holders");
    for holders in [1u64, 16, 64] {
        let lock = RangeLock::new();
        let held: Vec<_> = (1..=holders)
            .map(|n| lock.write(n * 4096..(n + 1) * 4096))
            .collect();
        group.bench_function(BenchmarkId::new("write", holders), |b| {
            b.iter(|| drop(lock.write(black_box(0..4096))));
        });
        drop(held);
    }
    group.finish();
}

/// Time for two threads to lock and unlock `rounds` times each, from the moment that both are
/// there; `locked` does one round.
fn two_threads(rounds: u64, locked: impl Fn(u64) + Sync) -> Duration {
    let (begin, end) = (Barrier::new(3), Barrier::new(3));
    thread::scope(|scope| {
        for thread in 0..2 {
            let (locked, begin, end) = (&locked, &begin, &end);
            scope.spawn(move || {
                begin.wait();
                (0..rounds).for_each(|_| locked(thread));
                end.wait();
            });
        }
        begin.wait();
        let start = Instant::now();
        end.wait();
        start.elapsed()
    })
}

fn contended(c: &mut Criterion) {
    let mut group = c.benchmark_group("two_threads");
    group.sample_size(20);
    let range = |disjoint: bool, thread: u64| {
        let start = if disjoint { thread * 4096 } else { 0 };
        start..start + 4096
    };
    for (policy, name) in [(Policy::Range, "range"), (Policy::File, "file")] {
        for (disjoint, sort) in [(true, "disjoint"), (false, "same")] {
            let lock = RangeLock::with_policy(policy);
            group.bench_function(BenchmarkId::new(name, sort), |b| {
                b.iter_custom(|n| two_threads(n, |t| drop(lock.write(range(disjoint, t)))));
            });
        }
    }
    for (disjoint, sort) in [(true, "disjoint"), (false, "same")] {
        let lock = RangeMapLock::new();
        group.bench_function(BenchmarkId::new("rangemap", sort), |b| {
            b.iter_custom(|n| two_threads(n, |t| drop(lock.write(range(disjoint, t)))));
        });
    }
    group.finish();
}

criterion_group!(benches, uncontended, among_holders, contended);
criterion_main!(benches);
