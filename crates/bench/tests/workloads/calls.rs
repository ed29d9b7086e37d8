//! Patterns of single system calls.

use crate::support::{go, ops, run_in};
use quayfs_bench::meter::Calls;
use quayfs_bench::workload::Wishes;
use std::collections::HashSet;
use std::os::unix::fs::FileExt;

const N: u64 = 25;

fn none() -> Calls {
    Calls::default()
}

/// What each workload calls in `N` operations, bytes written, bytes read.
fn expected() -> Vec<(&'static str, Calls, u64, u64)> {
    let k4 = 4096 * N;
    let m1 = N << 20;
    #[rustfmt::skip]
    let all = vec![
        ("stat", Calls { stat: N, ..none() }, 0, 0),
        ("stat-missing", Calls { stat: N, ..none() }, 0, 0),
        ("open", Calls { open: N, close: N, ..none() }, 0, 0),
        ("open-read", Calls { open: N, read: N, close: N, ..none() }, 0, k4),
        ("create", Calls { open: N, close: N, ..none() }, 0, 0),
        ("unlink", Calls { unlink: N, ..none() }, 0, 0),
        ("create-unlink", Calls { open: N, close: N, unlink: N, ..none() }, 0, 0),
        ("rename", Calls { rename: N, ..none() }, 0, 0),
        ("mkdir-rmdir", Calls { mkdir: N, rmdir: N, ..none() }, 0, 0),
        ("read", Calls { read: N, ..none() }, 0, k4),
        ("read-1m", Calls { read: N, ..none() }, 0, m1),
        ("overwrite", Calls { write: N, ..none() }, k4, 0),
        ("write-1m", Calls { write: N, ..none() }, m1, 0),
        ("overwrite-fsync", Calls { write: N, fsync: N, ..none() }, k4, 0),
        ("append-fsync", Calls { write: N, fsync: N, ..none() }, k4, 0),
        ("create-fsync", Calls { open: N, write: N, fsync: N, close: N, ..none() }, k4, 0),
        ("create-fsyncdir", Calls { open: N, write: N, fsync: 2 * N, close: N, ..none() }, k4, 0),
        ("rename-fsyncdir", Calls { rename: N, fsync: N, ..none() }, 0, 0),
        ("replace", Calls { open: N, write: N, fsync: 2 * N, close: N, rename: N, ..none() }, k4, 0),
        ("direct-write", Calls { write: N, ..none() }, k4, 0),
        ("direct-write-16", Calls { write: N, ..none() }, k4, 0),
        ("direct-read", Calls { read: N, ..none() }, 0, k4),
        ("direct-read-16", Calls { read: N, ..none() }, 0, k4),
    ];
    all
}

#[test]
fn each_calls_what_it_says() {
    for (name, calls, written, read) in expected() {
        let wishes = Wishes {
            files: Some(100),
            ..ops(N)
        };
        let done = go(name, &wishes);
        let sum = &done.total.sum;
        assert_eq!((sum.ops, sum.calls), (N, calls), "{name}");
        assert_eq!(
            (sum.bytes_written, sum.bytes_read),
            (written, read),
            "{name}"
        );
        assert_eq!(sum.all.len(), N, "{name}");
        assert!(sum.steps.iter().all(|s| s.len() == N), "{name}");
    }
}

#[test]
fn threads_do_the_same_each() {
    for (name, calls, written, _) in expected() {
        let wishes = Wishes {
            threads: Some(3),
            files: Some(50),
            ..ops(N)
        };
        let done = go(name, &wishes);
        assert_eq!(done.total.thread_ops, [N, N, N], "{name}");
        assert_eq!(done.calls().total(), 3 * calls.total(), "{name}");
        assert_eq!(done.total.sum.bytes_written, 3 * written, "{name}");
    }
}

#[test]
fn files_are_left_as_the_operations_leave_them() {
    for (name, files, size) in [
        ("stat", 100, 0),
        ("stat-missing", 0, 0),
        ("create", N as usize, 0),
        ("unlink", 100 - N as usize, 0),
        ("create-unlink", 0, 0),
        ("rename", 1, 0),
        ("mkdir-rmdir", 0, 0),
        ("overwrite", 1, 1 << 20),
        ("write-1m", 1, 1 << 20),
        ("overwrite-fsync", 1, 1 << 20),
        ("append-fsync", 1, N * 4096),
        ("create-fsync", N as usize, 4096),
        ("create-fsyncdir", N as usize, 4096),
        ("replace", 1, 4096),
        ("direct-write", 1, 1 << 20),
    ] {
        let wishes = Wishes {
            files: Some(100),
            ..ops(N)
        };
        let done = go(name, &wishes);
        let found = done.files();
        assert_eq!(found.len(), files, "{name}");
        assert!(found.iter().all(|(_, s)| *s == size), "{name}: {found:?}");
        let dirs = std::fs::read_dir(done.dir.path()).unwrap().count();
        assert_eq!(dirs, 1, "{name}");
    }
    let done = go("rename", &ops(N));
    assert!(done.files()[0].0.ends_with(format!("f{N}")));
}

#[test]
fn overwrites_touch_random_blocks_that_belong_to_the_seed() {
    let blocks = |seed| {
        let wishes = Wishes {
            seed: Some(seed),
            ..ops(N)
        };
        let done = go("overwrite", &wishes);
        let file = std::fs::File::open(&done.files()[0].0).unwrap();
        let mut stamps = HashSet::new();
        let mut content = vec![0; 1 << 20];
        file.read_exact_at(&mut content, 0).unwrap();
        for (n, block) in content.chunks(4096).enumerate() {
            // A write leaves its number; the first filling left other numbers in these bytes.
            let stamp = u64::from_le_bytes(block[..8].try_into().unwrap());
            if stamp < N && n > 0 {
                stamps.insert((n, stamp));
            }
        }
        (content, stamps)
    };
    let (content, stamps) = blocks(3);
    assert!(stamps.len() > N as usize / 2, "{stamps:?}");
    assert_eq!(content, blocks(3).0, "a seed says all");
    assert_ne!(stamps, blocks(4).1, "another seed writes elsewhere");
}

#[test]
fn fixed_work_ends_by_itself() {
    let all = Wishes {
        ops: None,
        ..ops(1)
    };
    let unlinked = go(
        "unlink",
        &Wishes {
            files: Some(321),
            ..all.clone()
        },
    );
    assert_eq!((unlinked.ops(), unlinked.calls().unlink), (321, 321));
    assert_eq!(unlinked.files().len(), 0);
    let size = Wishes {
        file_bytes: Some(5 << 20),
        ..all
    };
    let written = go("seq-write", &size);
    let calls = written.calls();
    assert_eq!((written.ops(), calls.write, calls.fsync), (5, 5, 1));
    assert_eq!(written.files()[0].1, 5 << 20);
    let steps = &written.total.sum.steps;
    assert_eq!((steps[0].len(), steps[1].len()), (5, 1));
    let read = go("seq-read", &size);
    assert_eq!((read.ops(), read.calls().read), (5, 5));
    assert_eq!(read.total.sum.bytes_read, 5 << 20);
    let read = go("seq-read-scattered", &size);
    assert_eq!((read.ops(), read.calls().read), (5, 5));
    // Every block was overwritten once: the numbers of the writes are all there.
    let content = std::fs::read(&read.files()[0].0).unwrap();
    let stamps = content.chunks(4096).map(|b| {
        let stamp = b[..8].first_chunk::<8>().unwrap();
        u64::from_le_bytes(*stamp)
    });
    let in_place: Vec<u64> = stamps.collect();
    let mut sorted = in_place.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..5 * 256), "{sorted:?}");
    assert_ne!(in_place, sorted, "not in the order of the file");
}

#[test]
fn listings_count_names() {
    let wishes = Wishes {
        files: Some(40),
        ..ops(100)
    };
    let done = go("ls", &wishes);
    // Whole listings: the first that reaches the limit is the last.
    assert_eq!((done.ops(), done.calls().stat), (120, 120));
    assert_eq!(done.total.sum.all.len(), 120);
    // Each ends with a call that finds nothing more.
    assert_eq!(done.calls().readdir, 6);
    assert_eq!(done.files().len(), 40);
}

#[test]
fn cold_listings_need_root() {
    let wishes = Wishes {
        files: Some(30),
        ..ops(31)
    };
    let dir = tempfile::tempdir().unwrap();
    let result = run_in(dir.path(), "ls-cold", &wishes);
    if quayfs_bench::caches::can_drop() {
        let total = result.unwrap();
        assert_eq!((total.sum.ops, total.sum.calls.stat), (60, 60));
        assert_eq!(total.sum.calls.open, 2);
        assert!(!total.sum.excluded.is_zero());
    } else {
        let e = result.unwrap_err().to_string();
        assert!(e.contains("only root"), "{e}");
    }
    let two = Wishes {
        threads: Some(2),
        ..wishes
    };
    run_in(dir.path(), "ls-cold", &two).unwrap_err();
}

#[test]
fn a_failing_thread_ends_the_run_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    // The second thread's directory cannot be made.
    std::fs::write(dir.path().join("t1"), "").unwrap();
    let wishes = Wishes {
        threads: Some(3),
        ops: None,
        ..ops(1)
    };
    let e = run_in(dir.path(), "create", &wishes).unwrap_err();
    let path = dir.path().join("t1");
    let expected = format!("open {}: Not a directory (os error 20)", path.display());
    assert_eq!(e.to_string(), expected);
    // While it runs.
    let dir = tempfile::tempdir().unwrap();
    let t0 = dir.path().join("t0");
    std::fs::create_dir(&t0).unwrap();
    std::fs::write(t0.join("d5"), "").unwrap();
    let wishes = Wishes {
        threads: Some(1),
        ..wishes
    };
    let e = run_in(dir.path(), "mkdir-rmdir", &wishes).unwrap_err();
    let expected = format!(
        "mkdir {}: File exists (os error 17)",
        t0.join("d5").display()
    );
    assert_eq!(e.to_string(), expected);
}
