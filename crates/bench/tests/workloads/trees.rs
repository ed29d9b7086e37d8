//! Trees of small files.

use crate::support::{go, ops};
use quayfs_bench::workload::Wishes;

fn all(files: u64, threads: u32) -> Wishes {
    Wishes {
        ops: None,
        files: Some(files),
        threads: Some(threads),
        ..ops(1)
    }
}

#[test]
fn a_tree_is_filled() {
    for (name, size, fsyncs) in [
        ("tokubench", 4096, 0),
        ("tokubench-200", 200, 0),
        ("tokubench-durable", 4096, 600),
    ] {
        let done = go(name, &all(300, 1));
        let calls = done.calls();
        assert_eq!(
            (done.ops(), calls.write, calls.fsync),
            (300, 300, fsyncs),
            "{name}"
        );
        // The directories were there before.
        assert_eq!((calls.mkdir, calls.open), (0, 300), "{name}");
        let files = done.files();
        assert_eq!(files.len(), 300, "{name}");
        assert!(files.iter().all(|(_, s)| *s == size), "{name}");
        assert_eq!(done.total.sum.bytes_written, 300 * size, "{name}");
        // 128, 128 and 44 are the shares that make it three, which are then filled in rotation.
        assert_eq!(widths(done.dir.path().join("b")), [100; 3], "{name}");
    }
}

/// Entries of each directory in this one.
fn widths(dir: std::path::PathBuf) -> Vec<usize> {
    let dirs = std::fs::read_dir(dir).unwrap();
    dirs.map(|d| std::fs::read_dir(d.unwrap().path()).unwrap().count())
        .collect()
}

#[test]
fn directories_of_tokubench_have_128_entries_at_most() {
    // 129 for each of 128 directories: one too many, so each has two below it.
    let done = go("tokubench-200", &all(128 * 129, 2));
    let top = done.dir.path().join("b");
    assert_eq!(widths(top.clone()), [2; 128]);
    let leaves: Vec<usize> = std::fs::read_dir(top)
        .unwrap()
        .flat_map(|d| widths(d.unwrap().path()))
        .collect();
    assert_eq!(leaves.iter().sum::<usize>(), 128 * 129);
    // 256 of them, and 16,512 files in rotation.
    assert!(leaves.iter().all(|n| [64, 65].contains(n)), "{leaves:?}");
}

#[test]
fn files_of_tokubench_have_other_places_with_another_seed() {
    let first = |seed| {
        let wishes = Wishes {
            files: Some(2000),
            seed: Some(seed),
            ..ops(1)
        };
        let done = go("tokubench", &wishes);
        let path = done.files().remove(0).0;
        let dir = path.parent().unwrap();
        dir.strip_prefix(done.dir.path()).unwrap().to_owned()
    };
    let places: std::collections::HashSet<_> = (1..9).map(first).collect();
    assert_eq!(first(1), first(1));
    assert!(places.len() > 2, "{places:?}");
}

#[test]
fn threads_share_the_files() {
    let done = go("tokubench", &all(301, 3));
    assert_eq!(done.total.thread_ops, [101, 100, 100]);
    assert_eq!(done.files().len(), 301);
    // More threads than directories: each of them has some.
    let done = go("tokubench", &all(200, 5));
    assert_eq!(done.total.thread_ops, [40; 5]);
    let mut widths = widths(done.dir.path().join("b"));
    widths.sort_unstable();
    assert_eq!(widths, [80, 120]);
}

#[test]
fn a_tree_is_walked_read_and_removed() {
    let walked = go("tree-walk", &all(300, 1));
    assert_eq!((walked.ops(), walked.calls().stat), (300, 300));
    assert_eq!(walked.calls().open, 4);
    let read = go("tree-read", &all(300, 2));
    assert_eq!((read.ops(), read.calls().read), (300, 600));
    assert_eq!(read.total.sum.bytes_read, 300 * 4096);
    let removed = go("tree-remove", &all(300, 2));
    assert_eq!((removed.ops(), removed.calls().unlink), (300, 300));
    // 150 files each: two directories and the one above.
    assert_eq!(removed.calls().rmdir, 6);
    for thread in ["t0", "t1"] {
        let left = std::fs::read_dir(removed.dir.path().join(thread)).unwrap();
        assert_eq!(left.count(), 0);
    }
}

#[test]
fn large_trees_have_several_directories_at_the_top() {
    let removed = go("tree-remove", &all(128 * 128 + 130, 1));
    assert_eq!(removed.calls().unlink, 128 * 128 + 130);
    assert_eq!(removed.calls().rmdir, 128 + 1 + 2 + 1);
    let left = std::fs::read_dir(removed.dir.path().join("t0")).unwrap();
    assert_eq!(left.count(), 0);
}
