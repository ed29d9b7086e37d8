//! Regions on a disk: what of them is written, when, and by which thread.

use quayfs_pmem::{Backend, BatchLog, MapOptions, PAGE, Region};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

const LEN: u64 = 512 * PAGE;

/// On a disk, as far as the build directory is.
fn on_disk() -> (tempfile::TempDir, PathBuf, Region) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("region");
    Region::create(&path, LEN, false).unwrap();
    let region = Region::open(&path, MapOptions::default()).unwrap();
    assert_eq!(
        region.backend(),
        Backend::File,
        "the build directory is in memory"
    );
    (dir, path, region)
}

fn word(file: &File, off: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, off).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn what_is_stored_stays_here_until_it_is_drained() {
    let (_dir, path, region) = on_disk();
    let file = File::open(&path).unwrap();
    region.store_u64(8, 1);
    region.write(3 * PAGE - 100, &[7; 5000]);
    region.write_nt(100 * PAGE, &[8; 4096]);
    region.flush(0, LEN);
    region.fence();
    // As memory pressure or a timer would have it.
    File::open(&path).unwrap().sync_all().unwrap();
    assert!(std::fs::read(&path).unwrap().iter().all(|b| *b == 0));
    region.drain().unwrap();
    assert_eq!(word(&file, 8), 1);
    assert_eq!(std::fs::read(&path).unwrap(), region.read_vec(0, LEN));
}

#[test]
fn what_nobody_stored_to_is_not_written() {
    let (_dir, path, region) = on_disk();
    region.store_u64(0, 1);
    region.drain().unwrap();
    // Behind its back, where a second write of any of it could be seen.
    let file = File::options().write(true).read(true).open(&path).unwrap();
    file.write_all_at(&9u64.to_le_bytes(), 8).unwrap();
    file.write_all_at(&9u64.to_le_bytes(), PAGE).unwrap();
    region.store_u64(2 * PAGE, 2);
    region.drain().unwrap();
    region.drain().unwrap();
    assert_eq!(
        [word(&file, 8), word(&file, PAGE), word(&file, 2 * PAGE)],
        [9, 9, 2]
    );
}

#[test]
fn another_mapping_sees_what_was_drained() {
    let (_dir, path, region) = on_disk();
    let other = Region::open(
        &path,
        MapOptions {
            read_only: true,
            ..MapOptions::default()
        },
    )
    .unwrap();
    assert_eq!(other.load_u64(64), 0);
    region.store_u64(64, 5);
    region.drain().unwrap();
    assert_eq!(other.load_u64(64), 5);
    assert_eq!(region.load().unwrap().load_u64(64), 5);
}

#[test]
fn a_copy_and_a_list_of_what_is_held_know_what_is_not_drained() {
    let (_dir, path, _) = on_disk();
    std::fs::remove_file(&path).unwrap();
    Region::create(&path, LEN, true).unwrap();
    let region = Region::open(&path, MapOptions::default()).unwrap();
    region.store_u64(300 * PAGE, 5);
    let held = region.held(0..LEN);
    assert!(
        held.iter().any(|part| part.contains(&(300 * PAGE))),
        "{held:?}"
    );
    region.store_u64(400 * PAGE, 6);
    assert_eq!(region.peek(400 * PAGE, 8).unwrap(), 6u64.to_le_bytes());
    region.store_u64(8, 7);
    assert_eq!(region.load().unwrap().load_u64(8), 7);
}

/// Neighbours share sectors and pages, so the writes of some contain what others have stored in between.
#[test]
fn a_drain_covers_its_own_stores_whatever_others_write() {
    const THREADS: u64 = 4;
    let (_dir, path, region) = on_disk();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let region = &region;
        let path = &path;
        let done = &done;
        // Keeps many pages dirty, so that drains take a while.
        scope.spawn(move || {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                (8..LEN / PAGE).for_each(|page| region.store_u64(page * PAGE, n));
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let file = File::open(path).unwrap();
                    for n in 1..=100 {
                        for page in 0..8 {
                            region.store_u64(page * PAGE + 8 * thread, n);
                        }
                        region.drain().unwrap();
                        for page in 0..8 {
                            assert_eq!(word(&file, page * PAGE + 8 * thread), n);
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.unwrap());
    });
    region.drain().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), region.read_vec(0, LEN));
}

/// A shell has set a limit to the length of files, which only privileges can lift.
#[test]
fn what_may_not_be_written_is_stored_to_the_file() {
    const NAME: &str = "what_may_not_be_written_is_stored_to_the_file";
    if let Some(path) = std::env::var_os("QUAYFS_LIMITED") {
        let region = Region::open(path.as_ref(), MapOptions::default()).unwrap();
        region.store_u64(LEN - 8, 7);
        return region.drain().unwrap();
    }
    let (_dir, path, region) = on_disk();
    drop(region);
    let done = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 8; exec \"$0\" --exact \"$1\""])
        .arg(std::env::current_exe().unwrap())
        .arg(NAME)
        .env("QUAYFS_LIMITED", &path)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(word(&File::open(&path).unwrap(), LEN - 8), 7);
}

#[test]
fn a_file_of_zeros_has_nothing_left_to_allocate() {
    let (_dir, _path, region) = on_disk();
    region.write_zeros(&mut |_| ()).unwrap();
    region.drain().unwrap();
    // What is only allocated counts as a hole.
    let held: u64 = region.held(0..LEN).iter().map(|r| r.end - r.start).sum();
    assert_eq!(held, LEN);
    assert!(region.read_vec(0, LEN).iter().all(|b| *b == 0));
}

#[test]
fn the_start_of_a_file_is_a_region_and_the_rest_stays_as_it_is() {
    let (_dir, path, region) = on_disk();
    drop(region);
    std::fs::write(&path, vec![7; LEN as usize]).unwrap();
    let len = LEN - 100 * PAGE;
    let options = |len| MapOptions {
        len: Some(len),
        ..MapOptions::default()
    };
    let region = Region::open(&path, options(len)).unwrap();
    assert_eq!(region.len(), len);
    region.write_zeros(&mut |_| ()).unwrap();
    region.write(len - 100, &[9; 100]);
    region.drain().unwrap();
    let mut expected = vec![7; LEN as usize];
    expected[..len as usize].fill(0);
    expected[len as usize - 100..len as usize].fill(9);
    assert!(std::fs::read(&path).unwrap() == expected);
    assert_eq!(region.load().unwrap().len(), len);
    drop(region);
    for wrong in [LEN + PAGE, 0, PAGE + 1] {
        Region::open(&path, options(wrong)).unwrap_err();
    }
}

/// On ext4 the kernel refuses a direct mapping late, when it has removed what was mapped at that address: mapping and
/// unmapping must be of addresses that are ours at every moment, or another thread loses its memory.
#[test]
fn regions_that_are_mapped_at_the_same_time_leave_each_other_alone() {
    const THREADS: u64 = 4;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::thread::scope(|scope| {
        for n in 1..=THREADS {
            let path = dir.path().join(n.to_string());
            Region::create(&path, n << 20, true).unwrap();
            scope.spawn(move || {
                for round in 0..2000 {
                    let region = Region::open(&path, MapOptions::default()).unwrap();
                    let last = region.len() - 8;
                    region.store_u64(last, round);
                    assert_eq!((region.load_u64(0), region.load_u64(last)), (0, round));
                }
            });
        }
    });
}

/// Its batches would not count in another life, though they are all that a crash leaves.
#[test]
fn a_batch_log_in_use_is_not_begun_again() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, left) = (dir.path().join("region"), dir.path().join("left"));
    let log = BatchLog {
        off: 1 << 20,
        len: 1 << 20,
        salt: 3,
        logged: vec![PAGE..2 * PAGE, 8 * PAGE..64 * PAGE],
    };
    Region::create(&path, 2 << 20, false).unwrap();
    let region = Region::open(&path, MapOptions::default()).unwrap();
    region.format_batches(&log).unwrap();
    region.log_batches(&log).unwrap();
    let commit = |off: u64, value: u64| {
        region.store_u64(off, value);
        region.settle_ranges(&log.logged).unwrap();
        region.drain_settled().unwrap();
    };
    let replayed = || {
        std::fs::copy(&path, &left).unwrap();
        let region = Region::open(&left, MapOptions::default()).unwrap();
        let found = region.replay_batches(&log).unwrap();
        (
            found.batches,
            [PAGE, 9 * PAGE].map(|off| region.load_u64(off)),
        )
    };
    commit(PAGE, 1);
    region.log_batches(&log).unwrap();
    assert_eq!(replayed(), (1, [1, 0]));
    commit(9 * PAGE, 2);
    assert_eq!(replayed(), (2, [1, 2]));
    // What would begin it leaves nothing in it.
    region.format_batches(&log).unwrap();
    assert_eq!(replayed(), (0, [1, 2]));
    commit(PAGE, 3);
    assert_eq!(replayed(), (1, [3, 2]));
}
