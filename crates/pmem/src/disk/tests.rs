use super::*;
use crate::memory::Mapped;
use rustix::io::{ReadWriteFlags, preadv2};
use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;

type Wait = Box<dyn Fn()>;

thread_local! {
    /// What the next writes of this thread do between the copy and the write.
    pub(super) static COPIED: RefCell<Option<Wait>> = const { RefCell::new(None) };
}

/// An older copy that is written after a newer one would take back what the newer one has made durable.
#[test]
fn no_sector_has_two_writes_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let file = with_file(dir.path());
    let disk = Disk::new(Arc::clone(&file), PAGE);
    let memory = Memory::heap(PAGE as usize);
    let store = |n: u64| {
        disk.store(&memory, 8 * n, 8, || memory.store_u64(8 * n, 1));
        disk.drain(&memory).unwrap();
    };
    let ((copied, is_copied), (go, may_go)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait: Wait = Box::new(move || {
                copied.send(()).unwrap();
                may_go.recv().unwrap();
            });
            COPIED.set(Some(wait));
            store(0);
        });
        is_copied.recv().unwrap();
        let second = scope.spawn(|| store(1));
        // It waits for the first, or has overtaken it.
        while !second.is_finished() && disk.landed.notify_all() == 0 {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
    });
    let mut both = [0; 16];
    file.read_exact_at(&mut both, 0).unwrap();
    assert_eq!(both.map(u64::from).iter().sum::<u64>(), 2, "{both:?}");
}

/// More writes than a wave has, of ranges that meet in a unit, by threads that each wait for the other.
#[test]
fn ranges_are_written_whole_and_nothing_else_is() {
    const LEN: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    for unit in [SECTOR, PAGE] {
        let file = with_len(dir.path(), LEN);
        let disk = Disk {
            unit,
            ..Disk::new(Arc::clone(&file), LEN)
        };
        let memory = Memory::heap(LEN as usize);
        let inside = [SECTOR..LEN / 4 + SECTOR, LEN / 4 + 2 * SECTOR..LEN / 2];
        for off in (0..LEN).step_by(3 * SECTOR as usize) {
            disk.store(&memory, off, 8, || memory.store_u64(off, off + 1));
        }
        let backwards = inside.clone().into_iter().rev();
        std::thread::scope(|scope| {
            scope.spawn(|| disk.write_out(&memory, backwards).unwrap());
            scope.spawn(|| disk.write_out(&memory, inside.clone()).unwrap());
        });
        let mut content = vec![0; LEN as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        for off in (0..LEN).step_by(3 * SECTOR as usize) {
            let shares = |range: &Range<u64>| {
                range.start / unit * unit <= off && off < range.end.next_multiple_of(unit)
            };
            let expected = if inside.iter().any(shares) {
                off + 1
            } else {
                0
            };
            let found = content[off as usize..][..8].try_into().unwrap();
            assert_eq!(u64::from_le_bytes(found), expected, "at {off}");
        }
        disk.write_out(&memory, once(0..LEN)).unwrap();
        file.read_exact_at(&mut content, 0).unwrap();
        assert!(content == memory_of(&memory), "unit {unit}");
    }
}

/// Of pages that have become copies, and of no others.
#[test]
fn the_page_cache_keeps_nothing_that_a_write_past_it_would_have_to_drop() {
    // Not where temporary files may lie in memory.
    let file = Arc::new(tempfile::tempfile_in(".").unwrap());
    // One by one: what is written at once may be cached as one, which is dropped as a whole or not at all.
    for page in 0..5 {
        file.write_all_at(&[1; PAGE as usize], page * PAGE).unwrap();
    }
    file.sync_all().unwrap();
    let memory = Memory::map(&file, 5 * PAGE as usize, true, Mapped::Private).unwrap();
    let disk = Disk::new(Arc::clone(&file), 5 * PAGE);
    let cached = move || {
        [0, 1, 2, 3, 4].map(|page| {
            let mut byte = [0];
            let mut slices = [io::IoSliceMut::new(&mut byte)];
            preadv2(&*file, &mut slices, page * PAGE, ReadWriteFlags::NOWAIT) == Ok(1)
        })
    };
    memory.populate(0, 5 * PAGE, false).unwrap();
    for off in [PAGE, 3 * PAGE] {
        disk.store(&memory, off, 8, || memory.store_u64(off, 2));
    }
    assert_eq!(cached(), [true; 5]);
    // Before the writes are handed over.
    COPIED.set(Some(Box::new(move || {
        assert_eq!(cached(), [true, false, true, false, true]);
    })));
    disk.write_out(&memory, once(0..5 * PAGE)).unwrap();
    assert!(COPIED.take().is_some());
}

fn memory_of(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

#[test]
fn a_panic_while_it_is_written_keeps_no_other_thread_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(with_file(dir.path()), PAGE);
    let memory = Memory::heap(PAGE as usize);
    let store = || {
        disk.store(&memory, 8, 8, || memory.store_u64(8, 1));
        disk.drain(&memory)
    };
    let panicked = std::thread::scope(|scope| {
        let panics = scope.spawn(|| {
            COPIED.set(Some(Box::new(|| panic!("on the way"))));
            store()
        });
        panics.join()
    });
    assert!(panicked.is_err());
    // What it had taken may not be there.
    assert!(store().is_err());
}

fn with_file(dir: &Path) -> Arc<File> {
    with_len(dir, PAGE)
}

fn with_len(dir: &Path, len: u64) -> Arc<File> {
    let path = dir.join("file");
    std::fs::write(&path, vec![0; len as usize]).unwrap();
    let mut options = File::options();
    Arc::new(options.read(true).write(true).open(&path).unwrap())
}

/// Its file is open for reading, so writes fail and flushes succeed.
fn broken(dir: &Path) -> Disk {
    with_file(dir);
    Disk {
        file: Arc::new(File::open(dir.join("file")).unwrap()),
        direct: None,
        unit: SECTOR,
        rings: RingPool::new().ok(),
        pages: Pages::untouched(PAGE),
        stale: Mutex::default(),
        limit: evict::usual_limit(),
        hand: Mutex::default(),
        flight: Mutex::new(Vec::new()),
        landed: Condvar::new(),
        batch_waits: AtomicBool::new(false),
        gate: DrainGate::default(),
        batches: OnceLock::new(),
        shadow: OnceLock::new(),
        tap: Tap::default(),
    }
}

#[test]
fn a_drain_fails_if_the_write_of_another_thread_took_its_store_and_failed() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::heap(PAGE as usize);
    for _ in 0..500 {
        let disk = broken(dir.path());
        let start = std::sync::Barrier::new(4);
        let drained = |n: u64| {
            disk.store(&memory, 8 * n, 8, || memory.store_u64(8 * n, 1));
            start.wait();
            disk.drain(&memory)
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|n| scope.spawn(move || drained(n))).collect();
            for one in all {
                assert!(one.join().unwrap().is_err());
            }
        });
    }
}

#[test]
fn a_failed_write_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let disk = broken(dir.path());
    let memory = Memory::heap(PAGE as usize);
    disk.drain(&memory).unwrap();
    disk.store(&memory, 8, 8, || memory.store_u64(8, 1));
    for _ in 0..2 {
        let error = disk.drain(&memory).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
    assert!(disk.flight.lock().is_empty());
}
