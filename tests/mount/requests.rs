//! How many requests a write is, as docs/semantics.md has it: each of them is one record, so a crash may come
//! between two. Counts depend on nothing but the kernel and the daemon, so they are compared exactly.
//!
//! Needs `/dev/fuse`; QUAYFS_SKIP_FUSE=1 does without.

use crate::program;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use program::{Mounted, Scene, can_mount};

/// Bytes of a record of a log.
const RECORD: usize = 6000;

/// One row of the table: what is done to a file of 100 bytes that is not in the page cache.
struct Row {
    name: &'static str,
    act: fn(&Path),
}

fn open(path: &Path) -> File {
    let open = OpenOptions::new().read(true).write(true).open(path);
    open.unwrap()
}

fn append(file: &mut File, bytes: usize) {
    assert_eq!(file.write(&vec![2; bytes]).unwrap(), bytes);
}

const ROWS: [Row; 7] = [
    Row {
        name: "6,000 bytes at a multiple of 4,096",
        act: |path| {
            let written = open(path).write_at(&[2; RECORD], 4096);
            assert_eq!(written.unwrap(), RECORD);
        },
    },
    Row {
        name: "6,000 bytes appended to a file of 100",
        act: |path| {
            let mut log = OpenOptions::new().append(true).open(path).unwrap();
            append(&mut log, RECORD);
        },
    },
    Row {
        name: "the same, when its last page has been read",
        act: |path| {
            open(path).read_exact_at(&mut [0; 100], 0).unwrap();
            let mut log = OpenOptions::new().append(true).open(path).unwrap();
            append(&mut log, RECORD);
        },
    },
    Row {
        name: "the same with `O_DIRECT`",
        act: |path| {
            let mut options = OpenOptions::new();
            options.append(true).custom_flags(libc::O_DIRECT);
            append(&mut options.open(path).unwrap(), RECORD);
        },
    },
    Row {
        name: "100 bytes within a page",
        act: |path| {
            let written = open(path).write_at(&[2; 100], 3000);
            assert_eq!(written.unwrap(), 100);
        },
    },
    Row {
        name: "100 bytes on two pages",
        act: |path| {
            let written = open(path).write_at(&[2; 100], 4050);
            assert_eq!(written.unwrap(), 100);
        },
    },
    Row {
        name: "ten appends of 1,000 bytes to a new file",
        act: |path| {
            let path = path.with_extension("log");
            let mut log = OpenOptions::new();
            let mut log = log.append(true).create_new(true).open(path).unwrap();
            (0..10).for_each(|_| append(&mut log, 1000));
        },
    },
];

/// Write requests of each row.
fn count(options: &str) -> Vec<u64> {
    let m = Mounted::on(Scene::in_memory(), options);
    let path = |i: usize| m.mnt().join(format!("f{i}"));
    for i in 0..ROWS.len() {
        std::fs::write(path(i), [1; 100]).unwrap();
    }
    // Nothing is in the page cache afterwards.
    m.umount();
    m.mount(options);
    let sent = || {
        let sent = &m.info()["messages"]["write"];
        sent.as_u64().unwrap_or(0)
    };
    let counts = ROWS.iter().enumerate().map(|(i, row)| {
        let before = sent();
        (row.act)(&path(i));
        sent() - before
    });
    let counts = counts.collect();
    m.umount();
    m.fsck();
    counts
}

#[test]
fn the_documented_requests_are_those_that_come() {
    if !can_mount() {
        return;
    }
    const HEADER: &str = "| `write(2)` of | requests | with `atomic_writes` |";
    let (usual, atomic) = (count("open=answer"), count("atomic_writes"));
    assert_eq!(
        usual,
        count("open=elide"),
        "it does not depend on how files are opened"
    );
    let counts = usual.iter().zip(&atomic);
    let table: Vec<String> = ROWS
        .iter()
        .zip(counts)
        .map(|(row, (usual, atomic))| format!("| {} | {usual} | {atomic} |", row.name))
        .collect();
    let doc = include_str!("../../docs/semantics.md").lines();
    let documented: Vec<_> = doc
        .skip_while(|l| *l != HEADER)
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .collect();
    assert_eq!(
        documented,
        table,
        "the table should be:\n{HEADER}\n|---|---|---|\n{}\n",
        table.join("\n")
    );
}
