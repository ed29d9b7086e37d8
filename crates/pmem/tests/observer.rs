//! A simulated region reports everything, first, from the right place, and nothing else.

use parking_lot::Mutex;
use quayfs_pmem::{Backend, Observer, PmemError, Region};
use std::io;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Store { off: u64, bytes: Vec<u8>, nt: bool },
    Flush { off: u64, len: u64 },
    Fence,
    Drain,
}

#[derive(Default)]
struct Log {
    events: Mutex<Vec<(Event, &'static Location<'static>)>>,
    region: OnceLock<Weak<Region>>,
    failing: AtomicBool,
}

impl Log {
    fn push(&self, event: Event, site: &'static Location<'static>) {
        self.events.lock().push((event, site));
    }

    fn take(&self) -> Vec<Event> {
        self.events
            .lock()
            .drain(..)
            .map(|(event, _)| event)
            .collect()
    }

    fn region(backend: Backend, len: u64) -> (Arc<Self>, Arc<Region>) {
        let log = Arc::new(Self::default());
        let region = Arc::new(Region::simulated_as(backend, len, log.clone()));
        log.region.set(Arc::downgrade(&region)).unwrap();
        (log, region)
    }
}

impl Observer for Log {
    fn store(&self, off: u64, bytes: &[u8], nt: bool, site: &'static Location<'static>) {
        let region = self.region.get().and_then(Weak::upgrade).unwrap();
        let before = region.read_vec(off, bytes.len() as u64);
        assert!(
            before.iter().all(|b| *b == 0),
            "reported after other threads could see it"
        );
        self.push(
            Event::Store {
                off,
                bytes: bytes.to_vec(),
                nt,
            },
            site,
        );
    }

    fn flush(&self, off: u64, len: u64, site: &'static Location<'static>) {
        self.push(Event::Flush { off, len }, site);
    }

    fn fence(&self, site: &'static Location<'static>) {
        self.push(Event::Fence, site);
    }

    fn drain(&self, site: &'static Location<'static>) {
        self.push(Event::Drain, site);
    }

    fn drain_fault(&self) -> Option<io::Error> {
        self.failing
            .load(Ordering::Relaxed)
            .then(|| io::Error::from_raw_os_error(libc::EIO))
    }
}

const BACKENDS: [Backend; 3] = [Backend::Dax, Backend::File, Backend::Volatile];

#[test]
fn everything_is_reported_in_order() {
    for backend in BACKENDS {
        let (log, region) = Log::region(backend, 4096);
        region.write(3, b"abc");
        region.write_nt(100, b"nt");
        region.store_u64(8, 0x0102_0304_0506_0708);
        region.store_u32(20, 0x0a0b_0c0d);
        region.flush(3, 30);
        region.fence();
        region.drain().unwrap();
        region.persist(100, 2).unwrap();
        let store = |off, bytes: &[u8], nt| Event::Store {
            off,
            bytes: bytes.to_vec(),
            nt,
        };
        let expected = vec![
            store(3, b"abc", false),
            store(100, b"nt", true),
            store(8, &[8, 7, 6, 5, 4, 3, 2, 1], false),
            store(20, &[0x0d, 0x0c, 0x0b, 0x0a], false),
            Event::Flush { off: 3, len: 30 },
            Event::Fence,
            Event::Drain,
            Event::Flush { off: 100, len: 2 },
            Event::Drain,
        ];
        assert_eq!(log.take(), expected, "{backend}");
    }
}

#[test]
fn reading_and_doing_nothing_is_not_reported() {
    let (log, region) = Log::region(Backend::Dax, 4096);
    region.write(10, b"");
    region.write_nt(4096, b"");
    region.flush(4096, 0);
    region.read(0, &mut [0; 8]);
    region.load_u64(0);
    region.load_u32(4);
    assert_eq!(log.take(), []);
}

#[test]
fn the_site_is_that_of_the_caller() {
    let (log, region) = Log::region(Backend::Dax, 4096);
    let line = line!() + 1;
    region.write(0, b"a");
    region.write_nt(1, b"a");
    region.store_u64(8, 1);
    region.store_u32(16, 1);
    region.flush(0, 1);
    region.fence();
    region.drain().unwrap();
    region.persist(0, 1).unwrap();
    let sites: Vec<_> = log
        .events
        .lock()
        .iter()
        .map(|(_, site)| (site.file(), site.line()))
        .collect();
    let expected: Vec<_> = [0, 1, 2, 3, 4, 5, 6, 7, 7]
        .map(|i| (file!(), line + i))
        .to_vec();
    assert_eq!(sites, expected);
}

#[test]
fn a_failed_drain_is_final() {
    for backend in BACKENDS {
        let (log, region) = Log::region(backend, 4096);
        region.drain().unwrap();
        log.failing.store(true, Ordering::Relaxed);
        let is_eio = |e: &PmemError| e.raw_os_error() == Some(libc::EIO);
        assert!(is_eio(&region.drain().unwrap_err()));
        log.failing.store(false, Ordering::Relaxed);
        assert!(
            is_eio(&region.drain().unwrap_err()),
            "{backend}: a later drain proves nothing"
        );
        assert!(is_eio(&region.persist(0, 64).unwrap_err()));
        let drains = log
            .take()
            .into_iter()
            .filter(|e| *e == Event::Drain)
            .count();
        assert_eq!(drains, 1, "a drain that failed settles nothing");
    }
}

#[test]
fn an_image_is_taken_over_silently() {
    let log = Arc::new(Log::default());
    let image: Vec<u8> = (0..8192_u32).map(|i| (i % 251) as u8).collect();
    let region = Region::from_image(&image, Some(log.clone()), Backend::File);
    assert_eq!(region.read_vec(0, region.len()), image);
    assert_eq!(region.backend(), Backend::File);
    assert_eq!(log.take(), []);
    assert!(region.try_lock_exclusive().unwrap() && region.path().is_none());
}

/// Everything that must panic rather than touch memory outside, and report nothing.
#[test]
fn violations_panic_and_are_not_reported() {
    let (log, region) = Log::region(Backend::Dax, 128);
    type Violation<'a> = (&'a str, &'a dyn Fn(&Region));
    let violations: [Violation<'_>; 14] = [
        ("write past the end", &|r| r.write(127, b"ab")),
        ("write_nt past the end", &|r| r.write_nt(127, b"ab")),
        ("write far outside", &|r| r.write(u64::MAX, b"a")),
        ("empty write outside", &|r| r.write(129, b"")),
        ("read past the end", &|r| r.read(121, &mut [0; 8])),
        ("read_vec of everything", &|r| drop(r.read_vec(1, u64::MAX))),
        ("load at the end", &|r| assert_eq!(r.load_u64(128), 0)),
        ("misaligned load", &|r| assert_eq!(r.load_u64(4), 0)),
        ("misaligned short load", &|r| assert_eq!(r.load_u32(2), 0)),
        ("store at the end", &|r| r.store_u64(128, 1)),
        ("misaligned store", &|r| r.store_u64(4, 1)),
        ("misaligned short store", &|r| r.store_u32(6, 1)),
        ("flush past the end", &|r| r.flush(64, 65)),
        ("flush wrapping around", &|r| r.flush(64, u64::MAX)),
    ];
    for (what, violate) in violations {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| violate(&region)));
        assert!(result.is_err(), "{what} was accepted");
    }
    assert_eq!(log.take(), []);
}
