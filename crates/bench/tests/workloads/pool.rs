//! PostMark.

use crate::support::{Done, go, ops};
use quayfs_bench::workload::Wishes;

const N: u64 = 200;

fn small(name: &str, seed: u64) -> Done {
    let wishes = Wishes {
        files: Some(100),
        seed: Some(seed),
        ..ops(N)
    };
    go(name, &wishes)
}

#[test]
fn a_transaction_is_two_of_four() {
    let done = small("postmark", 1);
    let steps: Vec<u64> = done.total.sum.steps.iter().map(|s| s.len()).collect();
    let [read, append, create, delete] = steps[..] else {
        panic!("{steps:?}")
    };
    assert_eq!((read + append, create + delete, done.ops()), (N, N, N));
    // A coin thrown 200 times.
    assert!(read.abs_diff(append) < 60 && create.abs_diff(delete) < 60);
    let calls = done.calls();
    assert_eq!((calls.unlink, calls.fsync), (delete, 0));
    assert_eq!(calls.open, calls.close);
    // Nearly all files are smaller than the largest, so nearly each append writes.
    assert!(calls.open <= read + append + create && calls.open > read + create);
    // What the C library calls: a look at each file, and the end of one that is appended to.
    assert_eq!(calls.stat, calls.open);
    assert_eq!(calls.seek, calls.open - read - create);
    // No read behind the end, which would be one more for each file.
    assert!(calls.read < 5 * read / 2, "{calls:?}");
    assert!(calls.read > 3 * read / 2, "{calls:?}");
    let files = done.files();
    assert_eq!(files.len() as u64, 100 + create - delete);
    assert!(files.iter().all(|(_, size)| (500..=10_000).contains(size)));
}

#[test]
fn durable_means_an_fsync_for_each_file_written() {
    let (plain, done) = (small("postmark", 1).calls(), small("postmark-durable", 1));
    let durable = done.calls();
    assert_eq!(durable.fsync, durable.open - done.total.sum.steps[0].len());
    assert_eq!((durable.open, durable.write), (plain.open, plain.write));
}

#[test]
fn a_seed_says_all() {
    let sizes = |seed| -> Vec<u64> {
        small("postmark", seed)
            .files()
            .iter()
            .map(|f| f.1)
            .collect()
    };
    assert_eq!(sizes(3), sizes(3));
    assert_ne!(sizes(3), sizes(4));
}
