//! What the scheduler finds in small programs, and that it finds it again. `make threads`.

#![cfg(feature = "sched")]
#![allow(missing_docs, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quayfs_sync::sched::{Outcome, Plan, run, with_plan};
use quayfs_sync::time::Instant;
use quayfs_sync::{Condvar, DashMap, Mutex, RwLock, epoch, thread};

/// How a run ended: what it returned, or what it panicked with.
fn end<T>(seed: u64, body: impl Fn() -> T) -> Result<(T, Outcome), String> {
    catch_unwind(AssertUnwindSafe(|| run(seed, &body))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_default()
    })
}

/// Two threads add to a number, reading and writing it apart; `held` says whether under a lock.
fn two_add(held: bool) -> u64 {
    let (number, lock) = (AtomicU64::new(0), Mutex::new(()));
    let add = || {
        for _ in 0..3 {
            let _guard = held.then(|| lock.lock());
            let n = number.load(Ordering::Relaxed);
            number.store(n + 1, Ordering::Relaxed);
        }
    };
    thread::scope(|s| {
        s.spawn(add);
        s.spawn(add);
    });
    number.load(Ordering::Relaxed)
}

#[test]
fn a_forgotten_lock_is_found_and_the_seed_finds_it_again() {
    let ends: Vec<_> = (0..400).map(|seed| end(seed, || two_add(false))).collect();
    let lost = |e: &Result<(u64, Outcome), _>| e.as_ref().is_ok_and(|(n, _)| *n < 6);
    let found = ends.iter().filter(|e| lost(e)).count();
    assert!(found > 20, "{found} of 400");
    for (seed, e) in (0..).zip(&ends) {
        assert_eq!(&end(seed, || two_add(false)), e);
        assert!(!lost(&end(seed, || two_add(true))));
    }
    let hashes = ends.iter().flatten().map(|(_, o)| o.hash);
    let hashes: std::collections::BTreeSet<_> = hashes.collect();
    assert!(hashes.len() > 30, "{} interleavings", hashes.len());
}

#[test]
fn a_plan_changes_the_interleaving_and_plants_bugs() {
    let go = |order, bug| {
        with_plan(Plan { order, bug }, || {
            end(1, || (quayfs_sync::planted("this"), two_add(false)))
        })
    };
    let hashes: std::collections::BTreeSet<_> = (0..20)
        .map(|order| go(order, None).map(|(_, o)| o.hash))
        .collect();
    assert!(hashes.len() > 10, "{} interleavings", hashes.len());
    assert!(matches!(go(0, Some("this")), Ok(((true, _), _))));
    assert!(matches!(go(0, Some("that")), Ok(((false, _), _))));
    assert!(!quayfs_sync::planted("this"));
}

/// Two threads take two locks, the second one in the other order if `crossed`.
fn two_locks(crossed: bool) {
    let (a, b) = (Mutex::new(0), Mutex::new(0));
    thread::scope(|s| {
        s.spawn(|| {
            let _first = a.lock();
            *b.lock() += 1;
        });
        s.spawn(|| {
            let (first, second) = if crossed { (&b, &a) } else { (&a, &b) };
            let _first = first.lock();
            *second.lock() += 1;
        });
    });
}

#[test]
fn a_deadlock_is_told_and_not_waited_for() {
    let ends: Vec<_> = (0..200).map(|seed| end(seed, || two_locks(true))).collect();
    let stuck: Vec<_> = ends.iter().flat_map(|e| e.as_ref().err()).collect();
    assert!(stuck.len() > 3, "{} of 200", stuck.len());
    assert!(
        stuck.iter().all(|s| s.starts_with("nobody can go on")),
        "{stuck:?}"
    );
    for (seed, e) in (0..).zip(&ends) {
        assert_eq!(&end(seed, || two_locks(true)), e);
        assert!(end(seed, || two_locks(false)).is_ok());
    }
}

#[test]
fn who_shares_a_lock_twice_is_stuck_behind_who_wants_it_alone() {
    let body = || {
        let lock = RwLock::new(0);
        thread::scope(|s| {
            s.spawn(|| *lock.write() += 1);
            let first = lock.read();
            *first + *lock.read()
        })
    };
    let stuck = (0..200).filter(|seed| end(*seed, body).is_err()).count();
    assert!((1..200).contains(&stuck), "{stuck} of 200");
}

#[test]
fn a_lost_signal_is_found() {
    let body = |careful: bool| {
        let (flag, lock, signal) = (AtomicBool::new(false), Mutex::new(()), Condvar::new());
        thread::scope(|s| {
            s.spawn(|| {
                let mut guard = lock.lock();
                while !flag.load(Ordering::Acquire) {
                    signal.wait(&mut guard);
                }
            });
            flag.store(true, Ordering::Release);
            let _guard = careful.then(|| lock.lock());
            signal.notify_all();
        });
    };
    assert!((0..200).any(|seed| end(seed, || body(false)).is_err()));
    assert!((0..200).all(|seed| end(seed, || body(true)).is_ok()));
}

#[test]
fn time_passes_when_everybody_waits() {
    let body = || {
        let begun = Instant::now();
        let (lock, signal) = (Mutex::new(()), Condvar::new());
        let late = signal.wait_for(&mut lock.lock(), Duration::from_secs(3600));
        thread::scope(|s| {
            s.spawn(|| thread::sleep(Duration::from_secs(3600)));
            thread::sleep(Duration::from_secs(60));
        });
        (late.timed_out(), begun.elapsed().as_secs())
    };
    assert!(matches!(end(1, body), Ok(((true, 7200), _))));
}

#[test]
fn what_readers_see_stays_until_they_have_gone() {
    let body = || {
        let (there, freed) = (AtomicBool::new(true), Arc::new(AtomicBool::new(false)));
        thread::scope(|s| {
            for _ in 0..2 {
                let (there, freed) = (&there, Arc::clone(&freed));
                s.spawn(move || {
                    let pin = epoch::pin();
                    if there.load(Ordering::Relaxed) {
                        assert!(!freed.load(Ordering::Relaxed));
                    }
                    drop(pin);
                });
            }
            there.store(false, Ordering::Relaxed);
            let pin = epoch::pin();
            let flag = Arc::clone(&freed);
            pin.defer(move || flag.store(true, Ordering::Relaxed));
            drop(pin);
        });
        freed.load(Ordering::Relaxed)
    };
    for seed in 0..100 {
        assert!(matches!(end(seed, body), Ok((true, _))), "seed {seed}");
    }
}

#[test]
fn parked_threads_and_panics_come_home() {
    let body = || {
        let done = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&done);
        let parked = thread::Builder::new().name("parked".into()).spawn(move || {
            thread::park();
            count.fetch_add(1, Ordering::Relaxed);
        });
        let waker = thread::spawn(thread::current);
        assert!(waker.join().is_ok());
        let handle = parked.expect("a thread");
        handle.thread().unpark();
        assert!(handle.join().is_ok());
        assert!(thread::spawn(|| panic!("away")).join().is_err());
        done.load(Ordering::Relaxed)
    };
    for seed in 0..20 {
        assert!(matches!(end(seed, body), Ok((1, _))), "seed {seed}");
    }
}

#[test]
fn the_map_is_a_map_with_and_without_a_scheduler() {
    let body = || {
        let map = DashMap::with_hasher(std::hash::RandomState::new());
        thread::scope(|s| {
            for t in 0..3_u64 {
                let map = &map;
                s.spawn(move || {
                    for n in 0..10 {
                        map.insert(t * 10 + n, n);
                    }
                });
            }
        });
        *map.entry(5).or_insert(0) += 100;
        *map.entry(50).or_insert(7) += 1;
        map.retain(|k, _| k % 2 == 1 || *k == 50);
        assert!(map.remove_if(&7, |_, v| *v == 8).is_none());
        assert_eq!(map.remove_if(&7, |_, v| *v == 7), Some((7, 7)));
        let sum: u64 = map.iter().map(|v| *v).sum();
        (map.len(), sum, map.get(&5).map(|v| *v))
    };
    let want = (15, 75 - 7 + 100 + 8, Some(105));
    assert_eq!(body(), want);
    assert!(matches!(end(3, body), Ok((got, _)) if got == want));
}
