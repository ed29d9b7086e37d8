//! Cost of a lock and unlock: uncontended, among other holders, and with several threads, beside a lock of the
//! whole file and the `rangemap` baseline.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use quayfs_rangelock::baseline::RangeMapLock;
use quayfs_rangelock::{FileLock, Policy, RangeLock};

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

/// Time for so many threads to lock and unlock `rounds` times each, from the moment that all are
/// there; `locked` does one round.
fn threads(count: u64, rounds: u64, locked: impl Fn(u64) + Sync) -> Duration {
    let all = usize::try_from(count).expect("a few threads") + 1;
    let (begin, end) = (Barrier::new(all), Barrier::new(all));
    thread::scope(|scope| {
        for thread in 0..count {
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

/// What is done while a range is held, about as long as a staged write of 4 KiB takes.
fn work() {
    (0..30).for_each(|_| std::hint::spin_loop());
}

fn contended(c: &mut Criterion) {
    for count in [2u64, 16] {
        let mut group = c.benchmark_group(format!("threads/{count}"));
        group.sample_size(20);
        for (disjoint, sort) in [(true, "disjoint"), (false, "same")] {
            let range = |thread: u64| {
                let start = if disjoint { thread * 4096 } else { 0 };
                start..start + 4096
            };
            for (policy, name) in [(Policy::Range, "range"), (Policy::File, "file")] {
                let lock = FileLock::new(policy);
                let locked = |t| {
                    let _guard = lock.write(range(t));
                    work();
                };
                group.bench_function(BenchmarkId::new(name, sort), |b| {
                    b.iter_custom(|n| threads(count, n, locked));
                });
            }
            let lock = RangeMapLock::new();
            let locked = |t| {
                let _guard = lock.write(range(t));
                work();
            };
            group.bench_function(BenchmarkId::new("rangemap", sort), |b| {
                b.iter_custom(|n| threads(count, n, locked));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, uncontended, among_holders, contended);
criterion_main!(benches);
