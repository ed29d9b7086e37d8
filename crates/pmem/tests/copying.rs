//! Bytes arrive where they should and nowhere else, for every alignment, on every kind of memory.

use proptest::prelude::*;
use quayfs_pmem::{Backend, MapOptions, Region};
use std::sync::atomic::{AtomicBool, Ordering};

const LEN: u64 = 4 * 4096;
/// Starts to be tried: every place in a line, or, with Miri, in a word.
const STARTS: u64 = if cfg!(miri) { 8 } else { 64 };

/// A region of each kind: with libpmem, with a page cache, simulated. Miri runs the last one only.
fn regions(dir: &std::path::Path) -> Vec<Region> {
    if cfg!(miri) {
        return vec![Region::from_image(
            vec![0; LEN as usize],
            None,
            Backend::Dax,
        )];
    }
    let path = dir.join("region");
    Region::create(&path, LEN, false).unwrap();
    vec![
        Region::anonymous(LEN),
        Region::open(&path, MapOptions::default()).unwrap(),
        Region::from_image(vec![0; LEN as usize], None, Backend::Dax),
    ]
}

/// Lengths on both sides of each way to copy. Miri, which is slow, gets those at the edges.
fn lengths(longest: usize) -> impl Iterator<Item = usize> {
    let short = if cfg!(miri) { 17 } else { 72 };
    (0..=short).chain([63, 64, 65, 127, 128, 129, 200, 511, 512, 513, 600, longest])
}

fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) | 1)
        .collect()
}

#[derive(Clone, Copy)]
enum How {
    Write,
    NonTemporal,
}

fn put(region: &Region, how: How, off: u64, bytes: &[u8]) {
    match how {
        How::Write => {
            region.write(off, bytes);
            region.flush(off, bytes.len() as u64);
        }
        How::NonTemporal => region.write_nt(off, bytes),
    }
    region.drain().unwrap();
}

#[test]
fn every_alignment_of_start_and_end_writes_exactly_its_bytes() {
    let dir = disk();
    // Drains on the file region are system calls, so it is left to the random test below.
    for region in regions(dir.path())
        .iter()
        .filter(|r| r.backend() != Backend::File)
    {
        for how in [How::Write, How::NonTemporal] {
            for start in 0..STARTS {
                for len in lengths(1024) {
                    let bytes = pattern(len, start as u8);
                    region.write(0, &[0; 2048]);
                    put(region, how, 256 + start, &bytes);
                    let mut expected = vec![0; 2048];
                    expected[256 + start as usize..][..len].copy_from_slice(&bytes);
                    assert_eq!(region.read_vec(0, 2048), expected, "{len} bytes at {start}");
                }
            }
        }
    }
}

#[test]
fn every_alignment_of_start_and_end_reads_exactly_its_bytes() {
    let dir = disk();
    let content = pattern(LEN as usize, 7);
    for region in regions(dir.path()) {
        region.write(0, &content);
        for start in 0..STARTS as usize {
            for len in lengths(4096) {
                let mut buf = vec![0; len + 2];
                region.read(start as u64, &mut buf[1..=len]);
                assert_eq!(
                    buf[1..=len],
                    content[start..start + len],
                    "{len} bytes at {start}"
                );
                assert_eq!((buf[0], buf[len + 1]), (0, 0));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_series_of_writes_is_what_an_array_would_hold(
        writes in proptest::collection::vec((0..LEN, 0..5000_usize, any::<u8>(), any::<bool>()), 1..12)
    ) {
        let dir = disk();
        for region in regions(dir.path()) {
            let mut model = vec![0; LEN as usize];
            for (off, len, seed, nt) in &writes {
                let bytes = pattern((*len).min((LEN - off) as usize), *seed);
                let how = if *nt { How::NonTemporal } else { How::Write };
                put(&region, how, *off, &bytes);
                model[*off as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
            prop_assert!(region.read_vec(0, LEN) == model);
        }
    }
}

#[test]
fn words_are_never_seen_in_part() {
    let dir = disk();
    let region = &regions(dir.path())[0];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..if cfg!(miri) { 200 } else { 200_000_u64 } {
                let value = if i % 2 == 0 { u64::MAX } else { 0 };
                region.store_u64(64, value);
                region.write(128, &value.to_le_bytes());
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            for off in [64, 128] {
                let value = region.load_u64(off);
                assert!(value == 0 || value == u64::MAX, "torn: {value:#x}");
                let copied = region.read_vec(off, 8);
                assert!(copied == [0; 8] || copied == [0xff; 8], "torn: {copied:?}");
            }
        }
    });
}

#[test]
fn a_private_copy_goes_its_own_way() {
    let dir = disk();
    for region in regions(dir.path()) {
        for (off, len) in [(5, 100), (4096, 4096), (LEN - 3, 3)] {
            put(&region, How::Write, off, &pattern(len, 1));
        }
        let copy = region.load().unwrap();
        assert_eq!(copy.read_vec(0, LEN), region.read_vec(0, LEN));
        assert_eq!((copy.backend(), copy.path()), (region.backend(), None));
        copy.write(9000, &[7]);
        region.write(9001, &[8]);
        assert_eq!(region.read_vec(9000, 2), [0, 8]);
        assert_eq!(copy.read_vec(9000, 2), [7, 0]);
    }
}
