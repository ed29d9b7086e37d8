use std::sync::atomic::{AtomicU64 as Count, Ordering};
use std::time::Duration;

use quayfs_crashsim::{Fault, FaultDevice, FaultOp, Repeat, SimDevice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const BLOCKS: u64 = 4096;
/// Small, so that segments end, begin and are overtaken all the time.
const LIMITS: Limits = Limits {
    places: 2,
    run: 16,
    gap: 4,
    times: 1,
    sparse: 3,
    requests: 2,
    least: 16,
    segment: 16,
    streams: 8,
    idle: 8,
    ends: 16,
    rest: Duration::MAX,
};

fn device() -> Arc<FaultDevice> {
    Arc::new(FaultDevice::new(Arc::new(SimDevice::unrecorded(BLOCKS))))
}

/// Runs `body` while a thread reads ahead.
fn served<T>(ahead: &ReadAhead, body: impl FnOnce() -> T) -> T {
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().name(AHEAD.into());
        thread.spawn_scoped(s, || ahead.serve()).unwrap();
        // Also where the body panics.
        struct Stop<'a>(&'a ReadAhead);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let _stop = Stop(ahead);
        while !ahead.is_served() {
            std::thread::yield_now();
        }
        body()
    })
}

/// Which write a block is of, in all of its words.
fn content(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK / 8)
}

#[track_caller]
fn version(block: &[u8]) -> u64 {
    let first = u64::from_le_bytes(block[..8].try_into().unwrap());
    assert!(block == content(first), "half of a write");
    first
}

fn write(ahead: &ReadAhead, block: u64, version: u64) {
    ahead.write(block, &content(version)).unwrap();
}

/// The versions of `len` blocks at each place.
fn read(ahead: &ReadAhead, places: &[u64], len: usize) -> io::Result<Vec<Vec<u64>>> {
    let mut bufs = vec![vec![0; len * BLOCK]; places.len()];
    let mut runs: Vec<_> = places
        .iter()
        .zip(&mut bufs)
        .map(|(block, buf)| ReadRun { block: *block, buf })
        .collect();
    ahead.read_many(&mut runs)?;
    let versions = |buf: Vec<u8>| buf.chunks(BLOCK).map(version).collect();
    Ok(bufs.into_iter().map(versions).collect())
}

/// Every block holds its number.
fn numbered(ahead: &ReadAhead) {
    (0..BLOCKS).for_each(|b| write(ahead, b, b));
}

#[track_caller]
fn check_numbers(ahead: &ReadAhead, places: &[u64], len: usize) {
    for (place, got) in places.iter().zip(read(ahead, places, len).unwrap()) {
        let want: Vec<u64> = (*place..*place + len as u64).collect();
        assert_eq!(got, want);
    }
}

#[test]
fn who_reads_on_gets_what_has_been_read_ahead() {
    let under = device();
    let ahead = ReadAhead::with(Arc::clone(&under) as _, LIMITS);
    numbered(&ahead);
    served(&ahead, || {
        for i in 0..50 {
            check_numbers(&ahead, &[100 + 4 * i, 1000 + 4 * i, 2000 + 4 * i], 4);
        }
    });
    // All but the first two requests.
    assert_eq!(ahead.counts().1, 48 * 12);
    assert!(under.calls(FaultOp::Read) < 50);
}

#[test]
fn without_a_thread_all_is_read_when_it_is_asked_for() {
    let under = device();
    let ahead = ReadAhead::with(Arc::clone(&under) as _, LIMITS);
    numbered(&ahead);
    let some = |from: u64| {
        for i in from..from + 5 {
            check_numbers(&ahead, &[100 + 4 * i, 1000 + 4 * i], 4);
        }
    };
    some(0);
    assert_eq!((under.calls(FaultOp::Read), ahead.counts()), (5, (0, 0)));
    served(&ahead, || some(5));
    let (reads, counts) = (under.calls(FaultOp::Read), ahead.counts());
    assert!(counts.1 > 0);
    some(10);
    assert_eq!(
        (under.calls(FaultOp::Read), ahead.counts()),
        (reads + 5, counts)
    );
}

#[test]
fn what_is_written_or_discarded_is_read_anew() {
    let under = device();
    let ahead = ReadAhead::with(Arc::clone(&under) as _, LIMITS);
    numbered(&ahead);
    served(&ahead, || {
        for i in 0..4 {
            check_numbers(&ahead, &[100 + 4 * i, 1000 + 4 * i], 4);
        }
        let before = ahead.counts().1;
        // All of it is there.
        write(&ahead, 117, 7);
        let run = [&content(8)[..]];
        let block = 1018;
        (ahead.write_many(&[WriteRun { block, bufs: &run }])).unwrap();
        let got = read(&ahead, &[116, 1016], 4).unwrap();
        assert_eq!(got, [[116, 7, 118, 119], [1016, 1017, 8, 1019]]);
        assert_eq!(ahead.counts().1, before);

        for i in 6..9 {
            check_numbers(&ahead, &[100 + 4 * i, 1000 + 4 * i], 4);
        }
        let before = ahead.counts().1;
        assert!(before > 0);
        ahead.discard(136, 1).unwrap();
        let garbage = read(&ahead, &[136, 1036], 1).unwrap();
        assert_ne!(garbage[0], [136]);
        assert_eq!(garbage[1], [1036]);
        assert_eq!(ahead.counts().1, before + 1);
    });
}

/// What happens to the thread that reads ahead, and to no other thread.
struct Odd<F> {
    under: Arc<FaultDevice>,
    read: F,
}

/// The name of that thread.
const AHEAD: &str = "ahead";

impl<F: Fn() -> io::Result<()> + Send + Sync> BlockDevice for Odd<F> {
    fn blocks(&self) -> u64 {
        self.under.blocks()
    }
    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        if std::thread::current().name() == Some(AHEAD) {
            (self.read)()?;
        }
        self.under.read(block, buf)
    }
    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        self.under.write(block, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.under.flush()
    }
    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        self.under.discard(block, count)
    }
    fn describe(&self) -> String {
        self.under.describe()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn silent_for(&self) -> Duration {
        self.under.silent_for()
    }

    fn missing(&self) -> u64 {
        self.under.missing()
    }
}

#[test]
fn a_failure_concerns_those_who_asked_for_the_block() {
    let under = device();
    let fails = Arc::new(AtomicBool::new(true));
    let read_ahead = {
        let fails = Arc::clone(&fails);
        move || match fails.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    };
    let odd = Odd {
        under: Arc::clone(&under),
        read: read_ahead,
    };
    let ahead = ReadAhead::with(Arc::new(odd), LIMITS);
    numbered(&ahead);
    served(&ahead, || {
        let some = |from: u64| {
            for i in from..from + 10 {
                check_numbers(&ahead, &[100 + 4 * i, 1000 + 4 * i], 4);
            }
        };
        some(0);
        assert_eq!(ahead.counts(), (0, 0));
        // What could not be read is left behind some time.
        fails.store(false, Ordering::SeqCst);
        some(10);
        assert!(ahead.counts().1 > 0);
        under.fail(FaultOp::Read, 1, Fault::Errno(libc::EIO), Repeat::Forever);
        let err = read(&ahead, &[3000, 3500], 4).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EIO));
        under.heal();
        check_numbers(&ahead, &[3000, 3500], 4);
    });
}

#[test]
fn a_thread_that_dies_leaves_nobody_waiting() {
    let odd = Odd {
        under: device(),
        read: || panic!("as it should"),
    };
    let ahead = Arc::new(ReadAhead::with(Arc::new(odd), LIMITS));
    numbered(&ahead);
    let serve = {
        let ahead = Arc::clone(&ahead);
        let thread = std::thread::Builder::new().name(AHEAD.into());
        thread.spawn(move || ahead.serve()).unwrap()
    };
    while !ahead.is_served() {
        std::thread::yield_now();
    }
    for i in 0..20 {
        check_numbers(&ahead, &[100 + 4 * i, 1000 + 4 * i], 4);
    }
    assert!(serve.join().is_err());
    assert_eq!(ahead.counts(), (0, 0));
}

#[test]
fn memory_is_bounded_and_comes_back() {
    // A segment fills a buffer, and a stream needs two at times.
    let blocks = (BUFFER / BLOCK) as u64;
    let limits = Limits {
        run: 4 * blocks,
        least: blocks,
        segment: blocks,
        streams: 40,
        ends: 100,
        ..LIMITS
    };
    let under = Arc::new(SimDevice::unrecorded(100 * 8 * blocks));
    let ahead = ReadAhead::with(under, limits);
    let places = |from: u64, i: u64| -> Vec<u64> {
        (from..from + 2 * BUFFERS as u64)
            .map(|p| p * 8 * blocks + 8 * i)
            .collect()
    };
    served(&ahead, || {
        for i in 0..10 {
            read(&ahead, &places(0, i), 8).unwrap();
            assert!(ahead.memory.lent.load(Ordering::Relaxed) <= BUFFERS);
        }
        let (_, before) = ahead.counts();
        assert!(before > 0);
        // Another reader comes when the first has gone.
        for i in 0..10 + limits.idle {
            read(&ahead, &places(50, i), 8).unwrap();
        }
        assert!(ahead.counts().1 > before);
        assert!(ahead.memory.lent.load(Ordering::Relaxed) <= BUFFERS);
    });
    assert_eq!(ahead.memory.lent.load(Ordering::Relaxed), 0);
}

#[test]
fn memory_is_returned_when_nobody_reads() {
    let rest = Duration::from_millis(10);
    for overwritten in [false, true] {
        let ahead = ReadAhead::with(device(), Limits { rest, ..LIMITS });
        numbered(&ahead);
        served(&ahead, || {
            for i in 0..10 {
                check_numbers(&ahead, &[100 + 4 * i, 1000 + 4 * i], 4);
            }
            if overwritten {
                // No stream is left.
                numbered(&ahead);
            }
            let kept = || {
                let lent = ahead.memory.lent.load(Ordering::Relaxed);
                lent + ahead.memory.free.lock().len()
            };
            while kept() > 0 {
                std::thread::yield_now();
            }
            assert!(!ahead.any.load(Ordering::SeqCst));
        });
    }
}

#[test]
fn buffers_are_ready_for_who_is_expected() {
    let ahead = ReadAhead::with(device(), LIMITS);
    served(&ahead, || {
        ahead.expect();
        while !ahead.memory.is_ready() {
            std::thread::yield_now();
        }
    });
    let free = ahead.memory.free.lock();
    assert_eq!(free.len(), READY);
    assert!(free.iter().all(|buf| buf.len() == BUFFER));
}

/// Reads in order, in several places at a time, and writes and discards anywhere: one thread, and what it should
/// find.
#[test]
fn reads_find_what_was_written_last() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let ahead = ReadAhead::with(device(), LIMITS);
        let mut want: Vec<Option<u64>> = vec![Some(0); BLOCKS as usize];
        let mut places: Vec<u64> = Vec::new();
        served(&ahead, || {
            for step in 1..1500 {
                let any = random.random_range(0..BLOCKS - 64);
                match random.random_range(0..20) {
                    0 => {
                        let len = random.random_range(1..8);
                        for b in any..any + len {
                            write(&ahead, b, step);
                            want[b as usize] = Some(step);
                        }
                    }
                    1 if !places.is_empty() => {
                        // Just before it is read.
                        let near = places[random.random_range(0..places.len())];
                        let b = near + random.random_range(0..20);
                        let block = content(step);
                        let run = [&block[..], &block[..]];
                        let block = b.min(BLOCKS - 2);
                        ahead.write_many(&[WriteRun { block, bufs: &run }]).unwrap();
                        want[block as usize..][..2].fill(Some(step));
                    }
                    2 => {
                        ahead.discard(any, 3).unwrap();
                        want[any as usize..][..3].fill(None);
                    }
                    3 => {
                        let many = random.random_range(1..10);
                        places = (0..many).map(|_| random.random_range(0..BLOCKS)).collect();
                    }
                    _ => {
                        let len = random.random_range(1..6);
                        for p in &mut places {
                            *p += random.random_range(0..3);
                        }
                        places.retain(|p| p + len <= BLOCKS);
                        let got = read(&ahead, &places, len as usize).unwrap();
                        for (p, got) in places.iter_mut().zip(got) {
                            for (b, got) in (*p..).zip(got) {
                                let want = want[b as usize];
                                assert!(want.is_none_or(|want| want == got), "seed {seed}");
                            }
                            *p += len;
                        }
                    }
                }
            }
        });
        assert!(ahead.counts().1 > 0, "seed {seed}");
    }
}

/// Several threads read in order while others write: no reader gets what was there before a write that has returned,
/// nor what has not begun to be written.
#[test]
fn readers_see_every_write_that_has_returned() {
    let ahead = ReadAhead::with(device(), LIMITS);
    let versions = || (0..BLOCKS).map(|_| Count::new(0)).collect::<Vec<_>>();
    let (begun, done) = (versions(), versions());
    const READERS: u64 = 3;
    /// Also where a reader panics.
    struct Gone<'a>(&'a Count);
    impl Drop for Gone<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let left = Count::new(READERS);
    served(&ahead, || {
        std::thread::scope(|s| {
            let (ahead, begun, done, left) = (&ahead, &begun, &done, &left);
            for writer in 0..2 {
                s.spawn(move || {
                    let mut random = StdRng::seed_from_u64(writer);
                    // Each has blocks of its own.
                    while left.load(Ordering::SeqCst) > 0 {
                        let b = random.random_range(0..BLOCKS / 2) * 2 + writer;
                        let version = begun[b as usize].load(Ordering::SeqCst) + 1;
                        begun[b as usize].store(version, Ordering::SeqCst);
                        write(ahead, b, version);
                        done[b as usize].store(version, Ordering::SeqCst);
                        std::thread::yield_now();
                    }
                });
            }
            for reader in 0..READERS {
                s.spawn(move || {
                    let _gone = Gone(left);
                    let mut random = StdRng::seed_from_u64(100 + reader);
                    for _ in 0..60 {
                        let mut places = [0; 4].map(|_| random.random_range(0..BLOCKS - 400));
                        for _ in 0..40 {
                            let len = random.random_range(1..8);
                            let at = |versions: &[Count]| {
                                let of = |b: u64| versions[b as usize].load(Ordering::SeqCst);
                                places.map(|p| (p..p + len).map(of).collect::<Vec<_>>())
                            };
                            let least = at(done);
                            let got = read(ahead, &places, len as usize).unwrap();
                            let most = at(begun);
                            for ((least, got), most) in least.iter().zip(got).zip(&most) {
                                assert!(least.iter().zip(&got).all(|(l, g)| l <= g));
                                assert!(got.iter().zip(most).all(|(g, m)| g <= m));
                            }
                            places = places.map(|p| p + len);
                        }
                    }
                });
            }
        });
    });
    assert!(ahead.counts().1 > 0);
}
