//! Power fails at any moment of a run, and the disk has any of the sectors that were not flushed. After the replay each
//! word has what it had when it was last made durable, or what was stored later.

use super::super::tap::{Event, Fault, Tap};
use super::super::tests::COPIED;
use super::*;
use crate::memory::Mapped;
use crate::{Backend, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::channel;

const AREAS: u64 = 288 << 10;
const LOG: u64 = 8192 + (256 << 10);
const LEN: u64 = AREAS + LOG;

/// Numbers that look random, of a seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn log() -> BatchLog {
    BatchLog {
        off: AREAS,
        len: LOG,
        salt: 7,
        logged: vec![2 * PAGE..3 * PAGE, 8 * PAGE..64 * PAGE],
    }
}

struct Run {
    disk: Disk,
    memory: Memory,
}

impl Run {
    fn new(unit: u64, fault: Option<Fault>) -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN).unwrap();
        let memory = Memory::map(&file, LEN as usize, true, Mapped::Private).unwrap();
        let disk = Disk {
            unit,
            direct: None,
            tap: Tap::planting(fault),
            ..Disk::new(Arc::new(file), LEN)
        };
        disk.log_batches(&memory, &log(), None).unwrap();
        Self { disk, memory }
    }

    fn batches(&self) -> &Batches {
        self.disk.batches.get().unwrap()
    }

    fn store(&self, off: u64, value: u64) {
        self.disk.store(&self.memory, off, 8, || {
            self.disk.tap.note(Event::Storing { off, value });
            self.memory.store_u64(off, value);
        });
        self.disk.tap.note(Event::Stored { off, value });
    }

    /// What a commit does, or a drain.
    fn make_durable(&self, ranges: impl IntoIterator<Item = Range<u64>>, at_home: bool) {
        let ranges: Vec<_> = ranges.into_iter().collect();
        let since = self.disk.tap.now();
        self.disk
            .settle_to(&self.memory, ranges.clone(), at_home)
            .unwrap();
        self.disk.flush().unwrap();
        for range in ranges {
            self.disk.tap.note(Event::Durable { since, range });
        }
    }

    /// A place that is often the same, in or outside of what is logged.
    fn place(dice: &mut Dice) -> u64 {
        let page = match dice.next(8) {
            0 => dice.next(AREAS / PAGE),
            1 | 2 => 2,
            3 | 4 => 8 + dice.next(4),
            _ => 8 + dice.next(56),
        };
        page * PAGE + 8 * dice.next(PAGE / 8)
    }

    fn step(&self, dice: &mut Dice, value: &mut u64) {
        let mut store = |dice: &mut Dice| {
            *value += 1;
            self.store(Self::place(dice), *value);
        };
        match dice.next(24) {
            0 => self.make_durable(once(0..AREAS), false),
            1 => {
                let from = dice.next(AREAS / PAGE) * PAGE;
                let to = (from + 16 * PAGE).min(AREAS);
                self.make_durable(once(from..to), true);
            }
            2 => {
                let batches = self.batches();
                let mut full = batches.full.lock();
                self.disk
                    .bring_home(&self.memory, batches, &mut full)
                    .unwrap();
            }
            3 if dice.next(8) == 0 => self.disk.empty_batches(&self.memory).unwrap(),
            // More than a batch has.
            4 => (0..60).for_each(|_| store(dice)),
            // A large piece, which is written at home but for what is away.
            5 => {
                let page = 8 + dice.next(50);
                for sector in 0..3 * PAGE / SECTOR {
                    *value += 1;
                    self.store(page * PAGE + sector * SECTOR, *value);
                }
                self.make_durable(log().logged, false);
            }
            6..=11 => self.make_durable(log().logged, false),
            _ => (0..1 + dice.next(6)).for_each(|_| store(dice)),
        }
    }
}

/// What of each word may be there: all that was stored, in order, with the event at which it had been, and which of it was
/// durable last.
#[derive(Default)]
struct Words(BTreeMap<u64, (Vec<(usize, u64)>, usize)>);

impl Words {
    fn apply(&mut self, at: usize, event: &Event) {
        match event {
            Event::Storing { off, value } => {
                let (values, _) = self.0.entry(*off).or_insert((vec![(0, 0)], 0));
                values.push((usize::MAX, *value));
            }
            Event::Stored { off, value } => {
                let (values, _) = self.0.get_mut(off).expect("was begun");
                let stored = values.iter_mut().rfind(|(_, v)| v == value);
                stored.expect("was begun").0 = at;
            }
            Event::Durable { since, range } => {
                for (values, durable) in self.0.range_mut(range.clone()).map(|(_, word)| word) {
                    let last = values.iter().rposition(|(stored, _)| stored < since);
                    *durable = (*durable).max(last.unwrap_or(0));
                }
            }
            _ => {}
        }
    }

    fn first_wrong(&self, region: &Region) -> Option<String> {
        self.0.iter().find_map(|(off, (values, durable))| {
            let found = region.load_u64(*off);
            let allowed = values[*durable..].iter().any(|(_, value)| *value == found);
            (!allowed).then(|| format!("{off}: {found}, not from {:?} on", values[*durable]))
        })
    }
}

/// The disk over time.
struct Media {
    flushed: Vec<u8>,
    /// Writes that no flush covers, by their events.
    pending: BTreeMap<usize, (u64, Vec<u8>)>,
    returned: BTreeSet<usize>,
    /// What had returned when a flush began.
    flushes: BTreeMap<usize, Vec<usize>>,
}

fn put(image: &mut [u8], off: u64, bytes: &[u8]) {
    image[off as usize..off as usize + bytes.len()].copy_from_slice(bytes);
}

impl Media {
    fn apply(&mut self, at: usize, event: &Event) {
        match event {
            Event::Writing { off, bytes } => {
                self.pending.insert(at, (*off, bytes.clone()));
            }
            Event::Written(id) => {
                self.returned.insert(*id);
            }
            Event::Flushing => {
                let returned = self.returned.iter().copied().collect();
                self.flushes.insert(at, returned);
            }
            Event::Flushed(began) => {
                for id in self.flushes.remove(began).into_iter().flatten() {
                    if let Some((off, bytes)) = self.pending.remove(&id) {
                        put(&mut self.flushed, off, &bytes);
                    }
                    self.returned.remove(&id);
                }
            }
            _ => {}
        }
    }

    /// What a power cut leaves: of the pending writes any sectors, mostly all of them or none.
    fn cut(&self, dice: &mut Dice) -> Vec<u8> {
        let mut image = self.flushed.clone();
        let in_any = dice.next(4);
        for (off, bytes) in self.pending.values() {
            for (i, sector) in bytes.chunks(SECTOR as usize).enumerate() {
                let is_there = match in_any {
                    0 => false,
                    1 => true,
                    2 => dice.next(8) != 0,
                    _ => dice.next(2) == 0,
                };
                if is_there {
                    put(&mut image, off + i as u64 * SECTOR, sector);
                }
            }
        }
        image
    }
}

fn replayed(image: &[u8]) -> Region {
    let region = Region::from_image(image, None, Backend::File);
    region.replay_batches(&log()).unwrap();
    region
}

/// A crash while it is replayed, and then another replay.
fn again(image: &[u8], once: &Region, dice: &mut Dice) -> Option<String> {
    let after = once.read_vec(0, LEN);
    // Until all is at home the head says what it said; behind that either copy may be new.
    let mut halfway = image.to_vec();
    let home = dice.next(2) == 0;
    for sector in 0..AREAS / SECTOR {
        let at = (sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize;
        if home || dice.next(2) == 0 {
            halfway[at.clone()].copy_from_slice(&after[at]);
        }
    }
    for head in log().heads() {
        if home && dice.next(2) == 0 {
            let at = head.start as usize..head.end as usize;
            halfway[at.clone()].copy_from_slice(&after[at]);
        }
    }
    let twice = replayed(&halfway).read_vec(0, AREAS);
    (twice != after[..AREAS as usize]).then(|| "the second replay differs".into())
}

/// Cuts the power at every event of a run, `cuts` times.
fn search(events: &[Event], cuts: u64, dice: &mut Dice) -> Result<u64, String> {
    let mut media = Media {
        flushed: vec![0; LEN as usize],
        pending: BTreeMap::new(),
        returned: BTreeSet::new(),
        flushes: BTreeMap::new(),
    };
    let (mut words, mut images, mut begun) = (Words::default(), 0, false);
    for (at, event) in events.iter().enumerate() {
        media.apply(at, event);
        words.apply(at, event);
        // Before the first head is durable there is no log: mkfs writes one.
        begun |= matches!(event, Event::Flushed(_));
        if !begun || matches!(event, Event::Storing { .. } | Event::Stored { .. }) {
            continue;
        }
        for _ in 0..cuts {
            let image = media.cut(dice);
            let region = replayed(&image);
            let wrong = words.first_wrong(&region);
            let twice = || {
                (images % 8 == 0)
                    .then(|| again(&image, &region, dice))
                    .flatten()
            };
            if let Some(wrong) = wrong.or_else(twice) {
                return Err(format!("event {at}, {event:.60?}: {wrong}"));
            }
            images += 1;
        }
    }
    Ok(images)
}

/// A run of one thread.
fn alone(seed: u64, steps: u32, unit: u64, fault: Option<Fault>) -> Vec<Event> {
    let run = Run::new(unit, fault);
    let (mut dice, mut value) = (Dice(seed), 0);
    for _ in 0..steps {
        run.step(&mut dice, &mut value);
    }
    run.disk.tap.take()
}

/// A run of several threads, each with words of its own, and one that brings home.
fn together(seed: u64, steps: u32, fault: Option<Fault>) -> Vec<Event> {
    const THREADS: u64 = 3;
    let run = Run::new(SECTOR, fault);
    std::thread::scope(|scope| {
        let home = scope.spawn(|| run.disk.serve_batches(&run.memory));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let run = &run;
                scope.spawn(move || {
                    let mut dice = Dice(seed ^ (thread << 40));
                    for i in 0..steps {
                        for _ in 0..1 + dice.next(5) {
                            let off = Run::place(&mut dice) / 32 * 32 + 8 * thread;
                            run.store(off, u64::from(i) << 8 | thread << 4 | dice.next(16));
                        }
                        match dice.next(6) {
                            0 => run.make_durable(once(0..AREAS), false),
                            1 => run.make_durable(once(0..AREAS), true),
                            _ => run.make_durable(log().logged, false),
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        run.disk.stop_bringing_home();
        home.join().unwrap();
    });
    run.disk.tap.take()
}

#[test]
fn a_power_cut_leaves_what_was_durable_or_newer() {
    let mut images = 0;
    for (seed, unit) in [(1, SECTOR), (2, SECTOR), (3, SECTOR), (4, PAGE), (5, PAGE)] {
        let events = alone(seed, 160, unit, None);
        let retired = events
            .iter()
            .filter(|e| matches!(e, Event::Writing { off, .. } if *off == AREAS));
        assert!(retired.count() > 3, "seed {seed}: the log was never full");
        images += search(&events, 2, &mut Dice(seed))
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(images > 5000, "{images}");
}

#[test]
fn a_power_cut_while_threads_settle_leaves_what_was_durable_or_newer() {
    for seed in 1..4 {
        let events = together(seed, 40, None);
        search(&events, 1, &mut Dice(seed)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// What lies over content that was brought home would be older than that.
fn overtaken(fault: Option<Fault>) -> u64 {
    let run = Run::new(SECTOR, fault);
    let at = 8 * PAGE;
    let ((copied, is_copied), (go, may_go)) = (channel(), channel::<()>());
    run.store(at, 1);
    std::thread::scope(|scope| {
        let run = &run;
        scope.spawn(move || {
            let wait = move || {
                copied.send(()).unwrap();
                may_go.recv().unwrap();
            };
            COPIED.set(Some(Box::new(wait)));
            run.make_durable(once(at..at + PAGE), true);
        });
        is_copied.recv().unwrap();
        run.store(at, 2);
        let second = scope.spawn(move || {
            run.make_durable(log().logged, false);
            run.disk.empty_batches(&run.memory).unwrap();
        });
        // It waits for the first, or has overtaken it.
        while !second.is_finished() && run.disk.landed.notify_all() == 0 {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
    });
    let mut word = [0; 8];
    run.disk.file.read_exact_at(&mut word, at).unwrap();
    u64::from_le_bytes(word)
}

#[test]
fn no_older_content_lies_over_what_was_brought_home() {
    assert_eq!(overtaken(None), 2);
    assert_eq!(overtaken(Some(Fault::FlightIgnored)), 1);
}

/// Else pieces that follow each other would keep a commit waiting for all of them.
#[test]
fn nothing_takes_off_while_a_batch_waits() {
    let run = Run::new(SECTOR, None);
    let [at, beside] = [8 * PAGE, 40 * PAGE];
    run.store(at, 1);
    std::thread::scope(|scope| {
        let run = &run;
        let first = beside..beside + PAGE;
        let landing = run.disk.claim(&first).unwrap();
        let batch = scope.spawn(move || run.make_durable(log().logged, false));
        let waits = |n: usize| run.disk.landed.notify_all() == n;
        while !batch.is_finished() && !waits(1) {
            std::thread::yield_now();
        }
        let next = scope.spawn(move || {
            let second = beside + PAGE..beside + 2 * PAGE;
            let _landing = run.disk.claim(&second).unwrap();
            assert_eq!(
                run.disk.pages.dirty_sectors(at / PAGE),
                0,
                "the batch was first"
            );
        });
        while !next.is_finished() && !waits(2) {
            std::thread::yield_now();
        }
        drop(landing);
    });
}

/// A search that finds nothing would say nothing.
#[test]
fn planted_faults_are_found() {
    for fault in [
        Fault::AwayIsWrittenHome,
        Fault::RetiredBeforeHome,
        Fault::NotBroughtHome,
        Fault::HeadLeftOut,
        Fault::HalfReused,
    ] {
        let found = (1..40).any(|seed| {
            let events = alone(seed, 160, SECTOR, Some(fault));
            search(&events, 1, &mut Dice(seed)).is_err()
        });
        assert!(found, "{fault:?}");
    }
}

#[test]
fn little_goes_to_a_batch_and_much_only_in_small_pieces() {
    // Whole pages one after the other, and sectors of pages of their own.
    for (pages, of_each, goes_home) in [
        (1, PAGE, false),
        (4, PAGE, false),
        (5, PAGE, true),
        (16, PAGE, true),
        (40, SECTOR, false),
    ] {
        let run = Run::new(SECTOR, None);
        for page in 8..8 + pages {
            for at in (0..of_each).step_by(SECTOR as usize) {
                run.store(page * PAGE + at, page);
            }
        }
        let much = run
            .disk
            .pages
            .are_much(std::slice::from_ref(&(0..AREAS)), BATCH_MAX);
        assert_eq!(much, goes_home, "{pages} times {of_each} bytes");
    }
}

/// A batch is no place from which anything is read.
#[test]
fn what_only_a_batch_has_is_stored_again() {
    let kept = [None, Some(Fault::TakenForWritten)].map(|fault| {
        let run = Run::new(SECTOR, fault);
        let file = rustix::fs::memfd_create("shadow", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        run.disk.outlive(&run.memory, file.into()).unwrap();
        run.store(2 * PAGE, 1);
        run.make_durable(once(2 * PAGE..3 * PAGE), false);
        assert_ne!(run.disk.away(2), 0);
        run.disk.forget_written(&run.memory);
        let kept = run.disk.shadow.get().unwrap().has(2);
        run.disk.empty_batches(&run.memory).unwrap();
        run.disk.forget_written(&run.memory);
        assert!(!run.disk.shadow.get().unwrap().has(2));
        kept
    });
    assert_eq!(kept, [true, false]);
}
