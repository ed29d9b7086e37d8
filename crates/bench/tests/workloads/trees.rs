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
        // Three directories of 128 files and the one that they are in.
        assert_eq!((calls.mkdir, calls.open), (4, 304), "{name}");
        let files = done.files();
        assert_eq!(files.len(), 300, "{name}");
        assert!(files.iter().all(|(_, s)| *s == size), "{name}");
        assert_eq!(done.total.sum.bytes_written, 300 * size, "{name}");
        let full = done.dir.path().join("t0/d0/e1");
        assert_eq!(std::fs::read_dir(full).unwrap().count(), 128, "{name}");
    }
}

#[test]
fn threads_share_the_files() {
    let done = go("tokubench", &all(301, 3));
    assert_eq!(done.total.thread_ops, [101, 100, 100]);
    assert_eq!(done.files().len(), 301);
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
