//! Unpacking an archive.

use crate::support::{Done, go, ops};
use quayfs_bench::workload::Wishes;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

fn unpacked(name: &str, seed: u64) -> Done {
    let wishes = Wishes {
        ops: None,
        files: Some(120),
        seed: Some(seed),
        ..ops(1)
    };
    go(name, &wishes)
}

#[test]
fn members_get_content_time_and_mode() {
    let done = unpacked("untar", 2);
    let files = done.files();
    let dirs = done.calls().mkdir;
    assert_eq!(files.len(), 120);
    assert!(dirs > 5, "{dirs}");
    assert_eq!(done.ops(), 120 + dirs);
    let calls = done.calls();
    assert_eq!((calls.open, calls.close), (120 + dirs, 120 + dirs));
    assert_eq!((calls.utimens, calls.chmod), (120 + dirs, 120 + dirs));
    assert_eq!((calls.fsync, calls.syncfs), (0, 0));
    let bytes: u64 = files.iter().map(|f| f.1).sum();
    assert_eq!(done.total.sum.bytes_written, bytes);
    // Pieces of 10 KiB.
    let pieces: u64 = files.iter().map(|f| f.1.div_ceil(10_240)).sum();
    assert_eq!(calls.write, pieces);
    let source = done.dir.path().join("t0/src");
    for path in files.iter().map(|f| &f.0).chain([&source]) {
        let meta = path.metadata().unwrap();
        let mode = if meta.is_dir() { 0o755 } else { 0o644 };
        assert_eq!((meta.mtime(), meta.mode() & 0o7777), (1_500_000_000, mode));
    }
}

#[test]
fn the_durable_one_ends_with_a_sync() {
    let done = unpacked("untar-sync", 2);
    assert_eq!((done.calls().fsync, done.calls().syncfs), (1, 1));
    assert_eq!(done.total.sum.steps[3].len(), 1);
}

#[test]
fn a_seed_is_an_archive() {
    let members = |seed| -> Vec<(PathBuf, u64)> {
        let done = unpacked("untar", seed);
        let root = done.dir.path();
        let relative = |(p, s): (PathBuf, u64)| (p.strip_prefix(root).unwrap().to_owned(), s);
        done.files().into_iter().map(relative).collect()
    };
    assert_eq!(members(1), members(1));
    assert_ne!(members(1), members(2));
}
