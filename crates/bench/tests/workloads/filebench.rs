//! The personalities of Filebench.

use crate::support::{Done, go, ops, renamed};
use quayfs_bench::meter::Calls;
use quayfs_bench::workload::Wishes;
use std::path::PathBuf;

fn small(name: &str, threads: u32, n: u64, seed: u64) -> Done {
    let wishes = Wishes {
        threads: Some(threads),
        files: Some(200),
        seed: Some(seed),
        ..ops(n)
    };
    go(name, &wishes)
}

/// Flowops of each kind in the order of the steps' names.
fn steps(done: &Done) -> Vec<u64> {
    done.total.sum.steps.iter().map(|s| s.len()).collect()
}

#[test]
fn a_loop_has_the_flowops_of_the_original() {
    // delete, create, append, write, fsync, open, read, close, stat
    for (name, expected) in [
        ("varmail", [1, 1, 2, 0, 2, 2, 2, 3, 0]),
        ("fileserver", [1, 1, 1, 1, 0, 2, 1, 3, 1]),
        ("webproxy", [1, 1, 1, 0, 0, 5, 5, 6, 0]),
        ("fileserver-durable", [1, 1, 1, 1, 2, 2, 1, 3, 1]),
        ("webproxy-durable", [1, 1, 1, 0, 1, 5, 5, 6, 0]),
    ] {
        let done = small(name, 1, 1, 1);
        assert_eq!(steps(&done), expected, "{name}");
        let ops: u64 = expected.iter().sum();
        assert_eq!(done.ops(), ops, "{name}");
        let [delete, create, append, _, fsync, open, read, close, stat] = expected;
        let calls = done.calls();
        let expected = Calls {
            open: create + open,
            close,
            // One returns the content, one the end.
            read: 2 * read,
            write: calls.write,
            fsync,
            // The directory of a file that is created.
            stat: create + stat,
            seek: append + read,
            unlink: delete,
            ..Calls::default()
        };
        assert_eq!(calls, expected, "{name}");
        assert!(calls.write >= append, "{name}");
    }
}

#[test]
fn names_are_whole_paths() {
    for name in ["varmail", "fileserver", "webproxy"] {
        let e = renamed(name, &ops(1)).unwrap_err().to_string();
        assert!(e.contains("/run/set") && e.contains("No such file"), "{e}");
    }
}

#[test]
fn threads_keep_the_set_together() {
    for name in ["varmail", "fileserver", "webproxy"] {
        // Deletes one and creates one.
        let before = small(name, 1, 1, 1).files().len();
        assert!((140..=180).contains(&before), "{name}: {before}");
        let done = small(name, 8, 100, 1);
        let steps = steps(&done);
        assert!(steps[0] > 30 && steps[1] > 30, "{name}: {steps:?}");
        let left = before as u64 + steps[1] - steps[0];
        assert_eq!(done.files().len() as u64, left, "{name}");
        assert_eq!(steps.iter().sum::<u64>(), done.ops(), "{name}");
        assert!(done.total.thread_ops.iter().all(|n| *n >= 100), "{name}");
    }
}

#[test]
fn sizes_are_those_of_the_original() {
    let mean = |name: &str, files: u64| {
        let wishes = Wishes {
            files: Some(files),
            ..ops(1)
        };
        let files = go(name, &wishes).files();
        files.iter().map(|f| f.1 as f64).sum::<f64>() / files.len() as f64
    };
    let varmail = mean("varmail", 1000);
    assert!((varmail / 16384.0 - 1.0).abs() < 0.12, "{varmail}");
    let fileserver = mean("fileserver", 300);
    assert!((fileserver / 131_072.0 - 1.0).abs() < 0.2, "{fileserver}");
    let webproxy = mean("webproxy", 300);
    assert!((webproxy / 16384.0 - 1.0).abs() < 0.01, "{webproxy}");
}

#[test]
fn a_seed_says_which_files_there_are_and_how_large() {
    let sizes = |seed| -> Vec<(PathBuf, u64)> {
        let done = small("fileserver", 1, 100, seed);
        let root = done.dir.path();
        let relative = |(p, s): (PathBuf, u64)| (p.strip_prefix(root).unwrap().to_owned(), s);
        done.files().into_iter().map(relative).collect()
    };
    assert_eq!(sizes(5), sizes(5));
    assert_ne!(sizes(5), sizes(6));
}
