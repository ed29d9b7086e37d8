//! A file as data device, in every combination of direct or buffered and ring or plain.

use proptest::prelude::*;
use quayfs_blockdev::{
    AlignedBuf, BLOCK, BlockDevice, FileDevice, OpenError, Options, ReadRun, RegionRun, WriteRun,
    create_file,
};
use quayfs_pmem::{Bytes, MapOptions, Region};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BLOCKS: u64 = 1024;

fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn file(dir: &Path) -> PathBuf {
    let path = dir.join("device");
    create_file(&path, BLOCKS * BLOCK as u64, true).unwrap();
    path
}

fn open(path: &Path, direct: bool, uring: bool) -> FileDevice {
    FileDevice::open(
        path,
        Options {
            direct,
            uring,
            ..Options::default()
        },
    )
    .unwrap()
}

const WAYS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

fn block(seed: u64) -> Vec<u8> {
    (0..BLOCK as u64)
        .map(|i| (i * 7 + seed * 131) as u8)
        .collect()
}

fn blocks(seed: u64, count: u64) -> Vec<u8> {
    (0..count).flat_map(|i| block(seed + i)).collect()
}

fn assert_same(left: &[u8], right: &[u8]) {
    assert_eq!(left.len(), right.len());
    let differs = left.iter().zip(right).position(|(a, b)| a != b);
    assert_eq!(differs, None, "the first differing byte");
}

#[test]
fn what_is_written_is_read_back_whatever_the_alignment() {
    let dir = disk();
    let path = file(dir.path());
    for (n, (direct, uring)) in WAYS.into_iter().enumerate() {
        let device = open(&path, direct, uring);
        assert_eq!(device.blocks(), BLOCKS);
        for shift in [0, 1, 512, 2048] {
            let content = blocks(n as u64 * 100 + shift as u64, 3);
            let mut memory = AlignedBuf::new(4 * BLOCK);
            memory[shift..shift + 3 * BLOCK].copy_from_slice(&content);
            device.write(5, &memory[shift..shift + 3 * BLOCK]).unwrap();
            let mut back = AlignedBuf::new(4 * BLOCK);
            device.read(5, &mut back[shift..shift + 3 * BLOCK]).unwrap();
            assert_same(&back[shift..shift + 3 * BLOCK], &content);
        }
        device.flush().unwrap();
    }
}

#[test]
fn many_runs_at_once_all_arrive() {
    for (direct, uring) in WAYS {
        let dir = disk();
        let path = file(dir.path());
        let device = open(&path, direct, uring);
        // More runs than a ring holds, in scattered order, of several buffers each.
        let content: Vec<Vec<u8>> = (0..300).map(block).collect();
        let bufs: Vec<Vec<&[u8]>> = (0..150)
            .map(|i| vec![&content[2 * i][..], &content[2 * i + 1][..]])
            .collect();
        let place = |i: usize| (i as u64 * 77 % 150) * 3;
        let runs: Vec<WriteRun<'_>> = bufs
            .iter()
            .enumerate()
            .map(|(i, bufs)| WriteRun {
                block: place(i),
                bufs,
            })
            .collect();
        device.write_many(&runs).unwrap();
        device.flush().unwrap();
        let mut back = vec![vec![0; 2 * BLOCK]; 150];
        let mut reads: Vec<ReadRun<'_>> = back
            .iter_mut()
            .enumerate()
            .map(|(i, buf)| ReadRun {
                block: place(i),
                buf,
            })
            .collect();
        device.read_many(&mut reads).unwrap();
        for (i, buf) in back.iter().enumerate() {
            assert_same(buf, &bufs[i].concat());
        }
        let mut gap = vec![1; BLOCK];
        device.read(2, &mut gap).unwrap();
        assert_same(&gap, &vec![0; BLOCK]);
    }
}

/// Regions with blocks in them, on the heap and mapped.
fn regions(dir: &Path, content: &[u8]) -> [Region; 2] {
    let path = dir.join("region");
    create_file(&path, content.len() as u64, false).unwrap();
    let mapped = Region::open(&path, MapOptions::default()).unwrap();
    let regions = [Region::anonymous(content.len() as u64), mapped];
    regions.iter().for_each(|r| r.write(0, content));
    regions
}

#[test]
fn what_lies_in_a_region_is_written_from_there() {
    for (direct, uring) in WAYS {
        let dir = disk();
        let path = file(dir.path());
        let device = open(&path, direct, uring);
        assert_eq!(device.takes_regions(), direct);
        // The last block is for those that are shifted.
        let content = blocks(3, 801);
        for (n, region) in regions(dir.path(), &content).iter().enumerate() {
            let at = |block: u64, count: usize| region.bytes(block * BLOCK as u64, count * BLOCK);
            // One block each, in many runs, back to front.
            let single: Vec<[Bytes<'_>; 1]> = (0..200).rev().map(|b| [at(b, 1)]).collect();
            let runs: Vec<RegionRun<'_>> = (0_u64..)
                .zip(&single)
                .map(|(i, bytes)| RegionRun {
                    block: 2 * i,
                    bytes,
                })
                .collect();
            device.write_from(&runs).unwrap();
            let mut back = vec![0; BLOCK];
            for i in 0..200 {
                device.read(2 * i as u64, &mut back).unwrap();
                assert_same(&back, &content[(199 - i) * BLOCK..][..BLOCK]);
            }
            // Longer than one transfer, out of several places.
            let bytes = [at(500, 1), at(0, 600), at(700, 2), at(600, 100)];
            device
                .write_from(&[RegionRun {
                    block: 300,
                    bytes: &bytes,
                }])
                .unwrap();
            let want: Vec<u8> = [500..501, 0..600, 700..702, 600..700]
                .into_iter()
                .flat_map(|r| content[r.start * BLOCK..r.end * BLOCK].to_vec())
                .collect();
            let mut back = vec![0; want.len()];
            device.read(300, &mut back).unwrap();
            assert_same(&back, &want);
            // What direct I/O does not take.
            let shifted = [region.bytes(100 + n as u64, 800 * BLOCK)];
            device
                .write_from(&[RegionRun {
                    block: 7,
                    bytes: &shifted,
                }])
                .unwrap();
            let mut back = vec![0; 800 * BLOCK];
            device.read(7, &mut back).unwrap();
            assert_same(&back, &content[100 + n..][..800 * BLOCK]);
            for bytes in [[at(0, 2)], [region.bytes(0, BLOCK + 512)]] {
                let run = RegionRun {
                    block: BLOCKS - 1,
                    bytes: &bytes,
                };
                let error = device.write_from(&[run]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
            }
        }
        device.flush().unwrap();
    }
}

#[test]
fn a_run_longer_than_one_transfer_is_whole() {
    for (direct, uring) in WAYS {
        let dir = disk();
        let path = file(dir.path());
        let device = open(&path, direct, uring);
        let content = blocks(9, 700);
        // One large buffer among small ones, so that it is cut in the middle.
        let (a, rest) = content.split_at(BLOCK);
        let (b, c) = rest.split_at(600 * BLOCK);
        let mut bufs = vec![a, b];
        bufs.extend(c.chunks(BLOCK));
        device
            .write_many(&[WriteRun {
                block: 300,
                bufs: &bufs,
            }])
            .unwrap();
        let mut back = vec![0; content.len()];
        device.read(300, &mut back).unwrap();
        assert_same(&back, &content);
        let mut on_file = vec![0; content.len()];
        device.flush().unwrap();
        std::fs::File::open(&path)
            .unwrap()
            .read_exact_at(&mut on_file, 300 * 4096)
            .unwrap();
        assert_same(&on_file, &content);
    }
}

#[test]
fn many_threads_write_and_read_at_once() {
    for (direct, uring) in WAYS {
        let dir = disk();
        let path = file(dir.path());
        let device = open(&path, direct, uring);
        std::thread::scope(|scope| {
            for thread in 0..12_u64 {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..4 {
                        let content = blocks(thread * 1000 + round, 40);
                        let bufs: Vec<&[u8]> = content.chunks(BLOCK).collect();
                        let runs: Vec<WriteRun<'_>> = bufs
                            .chunks(4)
                            .enumerate()
                            .map(|(i, bufs)| WriteRun {
                                block: thread * 80 + i as u64 * 8,
                                bufs,
                            })
                            .collect();
                        device.write_many(&runs).unwrap();
                        let mut back = vec![0; content.len()];
                        let mut reads: Vec<ReadRun<'_>> = back
                            .chunks_mut(4 * BLOCK)
                            .enumerate()
                            .map(|(i, buf)| ReadRun {
                                block: thread * 80 + i as u64 * 8,
                                buf,
                            })
                            .collect();
                        device.read_many(&mut reads).unwrap();
                        assert_same(&back, &content);
                    }
                    device.flush().unwrap();
                });
            }
        });
    }
}

#[test]
fn what_is_outside_or_not_whole_blocks_is_refused_untouched() {
    let dir = disk();
    let path = file(dir.path());
    for (direct, uring) in WAYS {
        let device = open(&path, direct, uring);
        let one = [1; BLOCK];
        let invalid = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        };
        invalid(device.write(BLOCKS, &one));
        invalid(device.write(BLOCKS - 1, &[1; 2 * BLOCK]));
        invalid(device.write(u64::MAX, &one));
        invalid(device.write(0, &one[1..]));
        invalid(device.read(BLOCKS, &mut one.clone()));
        invalid(device.read(0, &mut [0; 100]));
        invalid(device.discard(BLOCKS, 1));
        invalid(device.discard(1, u64::MAX));
        invalid(device.discard(1, u64::MAX / 4096));
        let good = WriteRun {
            block: 0,
            bufs: &[&one],
        };
        invalid(device.write_many(&[
            good,
            WriteRun {
                block: BLOCKS,
                bufs: &[&one],
            },
        ]));
        let halves = [&one[..2048], &one[2048..]];
        invalid(device.write_many(&[
            good,
            WriteRun {
                block: 1,
                bufs: &halves,
            },
        ]));
        let mut back = vec![7; BLOCK];
        device.read(0, &mut back).unwrap();
        assert_same(&back, &vec![0; BLOCK]);
        device.write(0, &[]).unwrap();
        device.write_many(&[]).unwrap();
        device.discard(BLOCKS, 0).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().len(),
            BLOCKS * BLOCK as u64
        );
    }
}

#[test]
fn a_read_only_device_takes_no_write() {
    let dir = disk();
    let path = file(dir.path());
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let device = FileDevice::open(&path, options).unwrap();
    assert!(device.is_read_only() && device.describe().contains("read-only"));
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS));
    };
    refused(device.write(0, &[0; BLOCK]));
    refused(device.discard(0, 1));
    device.flush().unwrap();
    device.read(0, &mut [0; BLOCK]).unwrap();
}

#[test]
fn a_file_that_was_truncated_is_an_error_not_zeros() {
    for (direct, uring) in WAYS {
        let dir = disk();
        let path = file(dir.path());
        let device = open(&path, direct, uring);
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(4096)
            .unwrap();
        let mut bufs = [[0; BLOCK]; 3];
        let mut runs: Vec<ReadRun<'_>> = bufs
            .iter_mut()
            .zip(0..)
            .map(|(buf, block)| ReadRun { block, buf })
            .collect();
        let error = device.read_many(&mut runs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}

#[test]
fn errors_of_the_system_reach_the_caller() {
    for (direct, uring) in WAYS {
        let memory = std::fs::File::from(
            memfd_create("device", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap(),
        );
        memory.set_len(BLOCKS * BLOCK as u64).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
        let device = open(&path, direct, uring);
        let content = block(1);
        let bufs = [&content[..]];
        let runs: Vec<_> = (0..200)
            .map(|block| WriteRun { block, bufs: &bufs })
            .collect();
        device.write_many(&runs).unwrap();
        fcntl_add_seals(&memory, SealFlags::WRITE).unwrap();
        let refused = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM));
        };
        refused(device.write(0, &content));
        refused(device.write_many(&runs));
        refused(device.discard(0, 1));
        // The device and its rings are as good as before.
        let mut back = vec![0; 200 * BLOCK];
        let mut reads: Vec<_> = back
            .chunks_mut(BLOCK)
            .zip(0..)
            .map(|(buf, block)| ReadRun { block, buf })
            .collect();
        device.read_many(&mut reads).unwrap();
        assert_same(&back, &content.repeat(200));
    }
}

#[test]
fn discarding_frees_the_blocks_of_a_file() {
    let dir = disk();
    let path = dir.path().join("device");
    create_file(&path, BLOCKS * BLOCK as u64, false).unwrap();
    let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(allocated() >= BLOCKS * BLOCK as u64);
    let device = open(&path, true, true);
    device.write(0, &blocks(3, 2)).unwrap();
    device.discard(1, BLOCKS - 1).unwrap();
    assert!(allocated() < BLOCKS * BLOCK as u64 / 2);
    let mut back = vec![0; BLOCK];
    device.read(0, &mut back).unwrap();
    assert_same(&back, &block(3));
    assert_eq!(
        std::fs::metadata(&path).unwrap().len(),
        BLOCKS * BLOCK as u64
    );
}

#[test]
fn a_created_file_is_private_and_never_replaces_another() {
    let dir = disk();
    let path = dir.path().join("device");
    create_file(&path, 8192, false).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        create_file(&path, 8192, false).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    let huge = dir.path().join("huge");
    assert!(create_file(&huge, 1 << 62, false).is_err());
    assert!(!huge.exists());
}

#[test]
fn what_cannot_be_a_device_is_refused() {
    let dir = disk();
    let open = |path: &Path| FileDevice::open(path, Options::default()).map(|_| ());
    assert!(matches!(
        open(&dir.path().join("missing")),
        Err(OpenError::Io { .. })
    ));
    assert!(matches!(open(dir.path()), Err(OpenError::Kind { .. })));
    assert!(matches!(
        open(Path::new("/dev/zero")),
        Err(OpenError::Kind { .. })
    ));
    let short = dir.path().join("short");
    std::fs::write(&short, [0; 4095]).unwrap();
    assert!(matches!(
        open(&short),
        Err(OpenError::Length { len: 4095, .. })
    ));
    std::fs::write(&short, [0; 9000]).unwrap();
    assert_eq!(
        FileDevice::open(&short, Options::default())
            .unwrap()
            .blocks(),
        2
    );
}

#[test]
fn one_holder_of_the_exclusive_lock() {
    let dir = disk();
    let path = file(dir.path());
    let (first, second) = (open(&path, false, false), open(&path, true, true));
    assert!(first.try_lock_exclusive().unwrap());
    assert!(!second.try_lock_exclusive().unwrap());
    assert!(!second.lock_shared(Duration::from_millis(20)).unwrap());
    drop(first);
    assert!(second.lock_shared(Duration::ZERO).unwrap());
    let third = open(&path, false, false);
    assert!(third.lock_shared(Duration::ZERO).unwrap());
    drop(second);
    assert!(third.lock_exclusive(Duration::ZERO).unwrap());
}

#[test]
fn the_description_says_how_it_is_accessed() {
    let dir = disk();
    let path = file(dir.path());
    let plain = open(&path, false, false).describe();
    assert!(
        plain.contains("regular file, 1024 blocks, buffered, plain system calls"),
        "{plain}"
    );
    let device = open(&path, true, true);
    assert_eq!(device.describe().contains("direct"), device.is_direct());
    assert_eq!(device.describe().contains("io_uring"), device.has_uring());
}

#[test]
fn aligned_buffers_are_aligned_and_independent() {
    for len in [0, 1, 4095, 4096, 4097, 1 << 20, (2 << 20) + 1] {
        let mut buf = AlignedBuf::new(len);
        assert!(AlignedBuf::is_aligned(&buf) && buf.len() == len);
        assert!(buf.iter().all(|b| *b == 0));
        buf.fill(7);
        let copy = buf.clone();
        buf.fill(8);
        assert!(AlignedBuf::is_aligned(&copy) && copy.iter().all(|b| *b == 7));
        let moved = Box::new(copy);
        assert!(AlignedBuf::is_aligned(&moved) && moved.iter().all(|b| *b == 7));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_series_of_transfers_is_what_an_array_would_hold(
        writes in proptest::collection::vec((0..60_u64, 1..20_u64, any::<u64>()), 1..20)
    ) {
        for (direct, uring) in WAYS {
            let dir = disk();
            let path = file(dir.path());
            let device = open(&path, direct, uring);
            let mut model = vec![0; 80 * BLOCK];
            for (at, count, seed) in &writes {
                let content = blocks(*seed % 1000, *count);
                device.write(*at, &content).unwrap();
                model[*at as usize * BLOCK..][..content.len()].copy_from_slice(&content);
            }
            let mut back = vec![0; 80 * BLOCK];
            device.read(0, &mut back).unwrap();
            prop_assert!(back == model);
        }
    }
}

#[test]
fn a_device_may_begin_behind_something_else() {
    const START: u64 = 100;
    for (direct, uring) in WAYS {
        let dir = disk();
        let path = file(dir.path());
        std::fs::write(&path, vec![7; BLOCKS as usize * BLOCK]).unwrap();
        let options = Options {
            direct,
            uring,
            start: START,
            ..Options::default()
        };
        let device = FileDevice::open(&path, options).unwrap();
        assert_eq!(device.blocks(), BLOCKS - START);
        let (one, two) = (AlignedBuf::new(BLOCK), vec![2; 3 * BLOCK]);
        let region = Region::anonymous(BLOCK as u64);
        region.write(0, &[3; BLOCK]);
        device.write(0, &one).unwrap();
        let run = |block, bufs| WriteRun { block, bufs };
        let last = BLOCKS - START - 1;
        let bufs: [&[u8]; 2] = [&two, &one];
        let runs = [run(10, &bufs[..1]), run(last, &bufs[1..])];
        device.write_many(&runs).unwrap();
        let bytes = [region.bytes(0, BLOCK)];
        let out = RegionRun {
            block: 20,
            bytes: &bytes,
        };
        device.write_from(&[out]).unwrap();
        device.discard(30, 1).unwrap();
        device.write(last + 1, &one).unwrap_err();
        let content = std::fs::read(&path).unwrap();
        let expected = |n: usize| match n.checked_sub(START as usize) {
            Some(10..13) => 2,
            Some(20) => 3,
            Some(n) if n == 0 || n == 30 || n == last as usize => 0,
            _ => 7,
        };
        for (n, block) in content.chunks(BLOCK).enumerate() {
            assert!(block.iter().all(|b| *b == expected(n)), "block {n}");
        }
        let mut back = vec![0; BLOCK];
        device.read(11, &mut back).unwrap();
        assert_eq!(back, vec![2; BLOCK]);
    }
    let dir = disk();
    let all = Options {
        start: BLOCKS,
        ..Options::default()
    };
    let nothing = FileDevice::open(&file(dir.path()), all);
    assert!(matches!(nothing, Err(OpenError::Length { .. })));
}

/// As when a daemon has died while it had something under way.
#[test]
fn what_another_has_under_way_is_waited_for() {
    let dir = disk();
    let path = file(dir.path());
    let (first, second) = (open(&path, true, true), open(&path, true, true));
    assert!(first.claim(Duration::ZERO).unwrap());
    assert!(!second.claim(Duration::from_millis(20)).unwrap());
    drop(first);
    assert!(second.claim(Duration::ZERO).unwrap());
}
