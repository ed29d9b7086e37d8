use super::*;
use crate::disk::LEAST_MEMORY;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, memfd_create};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

pub(in crate::disk) fn mapped(len: u64) -> (Arc<File>, Memory, Disk) {
    let file = Arc::new(tempfile::tempfile().unwrap());
    file.set_len(len).unwrap();
    let (memory, disk) = again(&file, len);
    (file, memory, disk)
}

/// As another process maps it: nothing of what was only stored is there.
pub(in crate::disk) fn again(file: &Arc<File>, len: u64) -> (Memory, Disk) {
    let memory = Memory::map(file, len as usize, true, Mapped::Private).unwrap();
    let mut disk = Disk::new(Arc::clone(file), len);
    disk.limit_memory(LEAST_MEMORY);
    (memory, disk)
}

pub(in crate::disk) fn memfd() -> File {
    File::from(memfd_create("shadow", MemfdFlags::CLOEXEC).unwrap())
}

pub(in crate::disk) fn content(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

fn write(disk: &Disk, memory: &Memory, off: u64, bytes: &[u8]) {
    let len = bytes.len() as u64;
    disk.store(memory, off, len, || memory.write(off, bytes));
}

#[derive(Clone, Debug)]
enum Step {
    Store(u64, Vec<u8>),
    Drain,
    Forget,
    Evict,
    Die,
}

fn steps(len: u64) -> impl Strategy<Value = Vec<Step>> {
    let store = (0..len - 3000, prop::collection::vec(any::<u8>(), 1..3000));
    let step = prop_oneof![
        6 => store.prop_map(|(off, bytes)| Step::Store(off, bytes)),
        1 => Just(Step::Drain),
        1 => Just(Step::Forget),
        1 => Just(Step::Evict),
        2 => Just(Step::Die),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever was written meanwhile, and whatever left memory.
    #[test]
    fn the_next_process_finds_what_the_last_one_stored(steps in steps(20 * PAGE)) {
        let len = 20 * PAGE;
        let (file, mut memory, mut disk) = mapped(len);
        let shadow = memfd();
        disk.outlive(&memory, shadow.try_clone().unwrap()).unwrap();
        let mut model = vec![0; len as usize];
        for step in steps {
            match step {
                Step::Store(off, bytes) => {
                    write(&disk, &memory, off, &bytes);
                    model[off as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                Step::Drain => disk.drain(&memory).unwrap(),
                Step::Forget => disk.forget_written(&memory),
                Step::Evict => disk.evict(&memory, &mut disk.hand.lock(), 0),
                Step::Die => {
                    (memory, disk) = again(&file, len);
                    disk.outlive(&memory, shadow.try_clone().unwrap()).unwrap();
                }
            }
            prop_assert!(content(&memory) == model);
        }
    }
}

/// Threads that store to words of their own in the same sectors, while pages leave and are written.
#[test]
fn no_store_of_any_thread_is_missing() {
    const THREADS: u64 = 3;
    const WORDS: u64 = 64;
    let len = 16 * PAGE;
    let (file, memory, disk) = mapped(len);
    let shadow = memfd();
    disk.outlive(&memory, shadow.try_clone().unwrap()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (memory, disk) = (&memory, &disk);
            scope.spawn(move || {
                for round in 1..=20_000 {
                    let off = round * 7 % WORDS * 1024 + 8 * thread;
                    disk.store(memory, off, 8, || memory.store_u64(off, round));
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..200 {
                disk.evict(&memory, &mut disk.hand.lock(), 0);
            }
        });
        scope.spawn(|| {
            for _ in 0..200 {
                disk.drain(&memory).unwrap();
                disk.forget_written(&memory);
            }
        });
    });
    let (next, disk) = again(&file, len);
    disk.outlive(&next, shadow).unwrap();
    assert!(content(&next) == content(&memory));
}

#[test]
fn what_left_memory_takes_none_in_the_shadow() {
    let len = 256 * PAGE;
    let (_file, memory, disk) = mapped(len);
    let shadow = memfd();
    disk.outlive(&memory, shadow.try_clone().unwrap()).unwrap();
    for page in 0..256 {
        write(&disk, &memory, page * PAGE, &[1; PAGE as usize]);
    }
    assert_eq!(disk.copied(), 2 * len);
    let taken = || shadow.metadata().unwrap().blocks() * 512;
    assert!(taken() >= len);
    disk.drain(&memory).unwrap();
    disk.evict(&memory, &mut disk.hand.lock(), 0);
    assert_eq!(disk.copied(), 0);
    assert!(taken() <= 2 * PAGE, "{}", taken());
}

#[test]
fn the_shadow_of_another_region_is_refused() {
    let (_file, memory, disk) = mapped(4 * PAGE);
    let shadow = memfd();
    shadow.set_len(9 * PAGE).unwrap();
    assert!(disk.outlive(&memory, shadow).is_err());
}
