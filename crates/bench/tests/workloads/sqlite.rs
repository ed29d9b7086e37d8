//! Transactions of SQLite.

use crate::support::{go, ops, run_in};
use quayfs_bench::workload::Wishes;
use rusqlite::Connection;

#[test]
fn each_transaction_is_a_row() {
    for (name, mode) in [("sqlite-wal", "wal"), ("sqlite-delete", "delete")] {
        let wishes = Wishes {
            threads: Some(2),
            ..ops(30)
        };
        let done = go(name, &wishes);
        assert_eq!(done.total.thread_ops, [30, 30], "{name}");
        for thread in 0..2 {
            let db = Connection::open(done.dir.path().join(format!("t{thread}/db"))).unwrap();
            let ask = "SELECT count(*), min(length(a)), max(length(a)) FROM t";
            let row: (u64, u64, u64) = db
                .query_row(ask, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))
                .unwrap();
            assert_eq!(row, (30, 100, 100), "{name}");
            let now: String = db
                .pragma_query_value(None, "journal_mode", |r| r.get(0))
                .unwrap();
            assert_eq!(now, mode);
        }
    }
}

#[test]
fn it_makes_use_of_atomic_writes() {
    let db = Connection::open_in_memory().unwrap();
    let mut options = db.prepare("PRAGMA compile_options").unwrap();
    let options = options.query_map([], |row| row.get(0)).unwrap();
    let options: Vec<String> = options.map(Result::unwrap).collect();
    let flag = "ENABLE_BATCH_ATOMIC_WRITE";
    assert!(options.iter().any(|o| o == flag), "{options:?}");
}

#[test]
fn what_sqlite_says_is_told() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("t0/db")).unwrap();
    let e = run_in(dir.path(), "sqlite-wal", &ops(1))
        .unwrap_err()
        .to_string();
    assert!(e.starts_with("SQLite on ") && e.contains("t0/db: "), "{e}");
}
