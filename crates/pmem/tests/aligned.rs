//! Where regions are mapped. One test, alone in its process: another thread could take the place that is asked for.

use quayfs_pmem::{MapOptions, Region};

const HUGE: u64 = 2 << 20;

/// Also a region that is shorter than a huge page, and one whose length is no multiple of it.
#[test]
fn a_region_begins_where_a_huge_page_does() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for pages in [1, 512, 5000] {
        let path = dir.path().join(pages.to_string());
        Region::create(&path, pages * 4096, true).unwrap();
        let region = Region::open(&path, MapOptions::default()).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = path.canonicalize().unwrap();
        let of_region = |line: &&str| line.ends_with(path.to_str().unwrap());
        let first = maps.lines().find(of_region).unwrap();
        let start = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
        assert_eq!(start % HUGE, 0, "{first}");
        drop(region);
    }
}
