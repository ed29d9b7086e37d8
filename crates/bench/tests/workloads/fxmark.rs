//! The microbenchmarks of FxMark.

use crate::support::{go, ops, renamed};
use quayfs_bench::meter::Calls;
use quayfs_bench::workload::Wishes;
use std::os::unix::fs::FileExt;

const N: u64 = 20;

#[test]
fn each_calls_what_the_original_calls() {
    let none = Calls::default();
    #[rustfmt::skip]
    let expected = [
        ("DWSL", Calls { write: N, fsync: N, ..none }, 4096 * N, 0),
        ("DWOL", Calls { write: N, ..none }, 4096 * N, 0),
        ("DWOM", Calls { write: N, ..none }, 4096 * N, 0),
        ("DWAL", Calls { write: N, ..none }, 4096 * N, 0),
        ("DRBL", Calls { read: N, ..none }, 0, 4096 * N),
        ("MWCL", Calls { open: N, close: N, ..none }, 0, 0),
        ("MWCM", Calls { open: N, write: N, close: N, ..none }, 4096 * N, 0),
        ("MWRL", Calls { rename: N, ..none }, 0, 0),
        ("MRPL", Calls { stat: N, ..none }, 0, 0),
    ];
    for threads in [1, 3] {
        for (name, calls, written, read) in expected {
            let wishes = Wishes {
                threads: Some(threads),
                ..ops(N)
            };
            let sum = go(name, &wishes).total.sum;
            let threads = u64::from(threads);
            assert_eq!(sum.ops, threads * N, "{name}");
            assert_eq!(sum.calls.total(), threads * calls.total(), "{name}");
            assert_eq!(sum.bytes_written, threads * written, "{name}");
            assert_eq!(sum.bytes_read, threads * read, "{name}");
            if threads == 1 {
                assert_eq!(sum.calls, calls, "{name}");
            }
        }
    }
}

#[test]
fn private_files_are_private_and_shared_ones_shared() {
    let threads = 3;
    let wishes = Wishes {
        threads: Some(threads),
        ..ops(N)
    };
    for (name, files, size) in [
        ("DWSL", 3, 4096),
        ("DWOL", 3, 4096),
        ("DRBL", 3, 4096),
        ("DWAL", 3, 4096 * N),
        ("DWOM", 1, 24 << 20),
        ("MWCL", 3 * N as usize, 0),
        ("MWCM", 3 * N as usize, 4096),
        ("MWRL", 3, 0),
        ("MRPL", 3, 0),
    ] {
        let done = go(name, &wishes);
        let found = done.files();
        assert_eq!(found.len(), files, "{name}");
        assert!(found.iter().all(|(_, s)| *s == size), "{name}: {found:?}");
        let flat = found
            .iter()
            .filter(|(p, _)| p.parent() == Some(done.dir.path()));
        let shared = matches!(name, "DWOM" | "MWCM");
        assert_eq!(flat.count(), if shared { files } else { 0 }, "{name}");
    }
}

#[test]
fn threads_of_dwom_write_8_mib_apart() {
    let wishes = Wishes {
        threads: Some(3),
        ..ops(N)
    };
    let done = go("DWOM", &wishes);
    let file = std::fs::File::open(&done.files()[0].0).unwrap();
    let mut touched = Vec::new();
    for block in 0..3 * 2048_u64 {
        let mut stamp = [0; 8];
        file.read_exact_at(&mut stamp, block * 4096).unwrap();
        // The last write of a thread has left its number.
        if u64::from_le_bytes(stamp) == N - 1 {
            touched.push(block);
        }
    }
    assert_eq!(touched, [0, 2048, 4096]);
}

#[test]
fn mrpl_resolves_five_components() {
    let done = go("MRPL", &ops(1));
    let path = &done.files()[0].0;
    let below = path.strip_prefix(done.dir.path()).unwrap();
    assert_eq!(below.to_str().unwrap(), "t0/0/0/0/0");
}

#[test]
fn mrpl_begins_at_the_root() {
    let e = renamed("MRPL", &ops(1)).unwrap_err().to_string();
    assert!(e.contains("/run/t0/0/0/0/0: No such file"), "{e}");
    renamed("MWRL", &ops(1)).unwrap();
}
