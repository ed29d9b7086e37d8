//! Readers and writers of parts of a table, from several threads.
//!
//! The table is shared without any other lock: its words are atomic only because the language wants it, and each is
//! loaded and stored in two steps, so that two writers in one part, or a reader beside a writer, would be noticed.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use quayfs_rangelock::RangeLock;

const PARTS: u64 = 8;
/// Words of a part.
const WORDS: u64 = 64;
const WRITERS: u64 = 4;
const READERS: u64 = 2;
/// Of each thread; a multiple of the parts, so that each part gets as many.
const ROUNDS: u64 = 512;
/// The changes of the whole table, beside those of parts.
const SWEEPS: u64 = 20;

struct Table {
    lock: RangeLock,
    words: Vec<AtomicU64>,
}

impl Table {
    /// Adds one to each word of a range. Returns whether others were in the way.
    fn add(&self, start: u64, end: u64) -> bool {
        let guard = self.lock.write(start..end);
        for word in &self.words[start as usize..end as usize] {
            let value = word.load(Relaxed);
            word.store(value + 1, Relaxed);
        }
        guard.waited()
    }

    /// The words of a part, which are all the same whenever no writer is in it.
    fn read(&self, part: u64) -> u64 {
        let _guard = self.lock.read(part * WORDS..(part + 1) * WORDS);
        let words = &self.words[(part * WORDS) as usize..][..WORDS as usize];
        let first = words[0].load(Relaxed);
        let same = words.iter().all(|w| w.load(Relaxed) == first);
        assert!(same, "a reader met a writer");
        first
    }
}

/// Two threads hold a part each at the same time: with one lock for all of it the barrier would never open.
fn neighbours_meet(table: &Table) {
    let both = Barrier::new(2);
    thread::scope(|s| {
        for part in 0..2 {
            let both = &both;
            s.spawn(move || {
                let _guard = table.lock.write(part * WORDS..(part + 1) * WORDS);
                both.wait();
            });
        }
    });
    println!("two writers held neighbouring parts at the same time");
}

fn refusals(table: &Table) {
    let held = table.lock.read(0..2 * WORDS);
    assert!(table.lock.try_read(WORDS..3 * WORDS).is_some());
    assert!(table.lock.try_write(WORDS..3 * WORDS).is_none());
    assert!(table.lock.try_write(2 * WORDS..3 * WORDS).is_some());
    println!(
        "beside a reader of {:?}: readers, not writers",
        held.range()
    );
}

fn main() {
    let table = Table {
        lock: RangeLock::new(),
        words: (0..PARTS * WORDS).map(|_| AtomicU64::new(0)).collect(),
    };
    neighbours_meet(&table);
    refusals(&table);

    thread::scope(|s| {
        for writer in 0..WRITERS {
            let table = &table;
            s.spawn(move || {
                for round in 0..ROUNDS {
                    let part = (writer + round) % PARTS;
                    table.add(part * WORDS, (part + 1) * WORDS);
                }
            });
        }
        for _ in 0..READERS {
            s.spawn(|| {
                for round in 0..ROUNDS {
                    table.read(round % PARTS);
                }
            });
        }
        // The whole table again and again, though small requests come all the time.
        let sweeps = s.spawn(|| (0..SWEEPS).filter(|_| table.add(0, PARTS * WORDS)).count());
        let waited = sweeps.join().expect("a sweep panicked");
        println!("{SWEEPS} changes of the whole table, {waited} of which had to wait");
    });

    let each = WRITERS * ROUNDS / PARTS + SWEEPS;
    for part in 0..PARTS {
        assert_eq!(table.read(part), each);
    }
    let stats = table.lock.stats();
    assert_eq!((stats.held, stats.waiting), (0, 0));
    println!("{each} changes of each part, none lost: {stats:?}");
}

#[test]
fn it_runs() {
    main();
}
