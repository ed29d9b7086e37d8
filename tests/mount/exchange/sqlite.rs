//! SQLite, which finds out by itself that several writes can be one, and then does without a journal.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::Duration;

use rusqlite::{Connection, params};

use crate::program::{Mounted, Scene, Start as _, can_mount, eventually};

const OPTIONS: &str = "atomic_writes";

/// A connection to the database of this mount.
fn open(m: &Mounted, mode: &str) -> rusqlite::Result<Connection> {
    let db = Connection::open(m.mnt().join("db"))?;
    db.busy_timeout(Duration::from_secs(30))?;
    db.pragma_update(None, "journal_mode", mode)?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.execute_batch("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, part INTEGER, a BLOB)")?;
    Ok(db)
}

/// A transaction of four rows of one content.
fn transaction(db: &mut Connection, n: u64, bytes: usize) -> rusqlite::Result<()> {
    let t = db.transaction()?;
    for part in 0..4 {
        let row = params![n * 4 + part, part, vec![n as u8; bytes]];
        t.execute("INSERT INTO t VALUES (?1, ?2, ?3)", row)?;
    }
    t.commit()
}

/// Asserts that there is nothing but whole transactions, that SQLite finds nothing wrong, and how many there are.
#[track_caller]
fn check(db: &Connection) -> u64 {
    let whole: String = db
        .query_row("PRAGMA integrity_check", [], |r| r.get(0))
        .unwrap();
    assert_eq!(whole, "ok");
    let ask = "SELECT count(*), count(DISTINCT n / 4) FROM t";
    let (rows, transactions): (u64, u64) = db
        .query_row(ask, [], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap();
    assert_eq!(rows, transactions * 4, "transactions are whole");
    transactions
}

/// Files that the mount has made so far.
fn made(m: &Mounted) -> u64 {
    m.info()["messages"]["create"].as_u64().unwrap_or(0)
}

#[test]
fn transactions_take_no_journal() {
    if !can_mount() {
        return;
    }
    for (options, journals) in [(OPTIONS, false), ("open=answer", true)] {
        let m = Mounted::on(Scene::in_memory(), options);
        let mut db = open(&m, "delete").unwrap();
        transaction(&mut db, 0, 100).unwrap();
        let before = made(&m);
        for n in 1..=50 {
            transaction(&mut db, n, 100).unwrap();
        }
        let journal = made(&m) - before;
        assert_eq!(journal, if journals { 50 } else { 0 }, "{options}");
        // More than fits into one record.
        transaction(&mut db, 51, 600_000).unwrap();
        assert_eq!(made(&m) - before, journal + 1, "{options}");
        assert_eq!(check(&db), 52);
        let t = db.transaction().unwrap();
        t.execute("DELETE FROM t", []).unwrap();
        t.rollback().unwrap();
        assert_eq!(check(&open(&m, "delete").unwrap()), 52);
        drop(db);
        m.umount();
        m.fsck();
        m.mount(options);
        assert_eq!(check(&open(&m, "delete").unwrap()), 52);
        m.umount();
    }
}

#[test]
fn connections_take_turns() {
    if !can_mount() {
        return;
    }
    for mode in ["delete", "persist", "wal"] {
        let m = Mounted::on(Scene::in_memory(), OPTIONS);
        drop(open(&m, mode).unwrap());
        scope(|s| {
            for writer in 0..4 {
                let m = &m;
                s.spawn(move || {
                    let mut db = open(m, mode).unwrap();
                    for n in 0..25 {
                        transaction(&mut db, writer * 1000 + n, 3000).unwrap();
                    }
                });
            }
        });
        assert_eq!(check(&open(&m, mode).unwrap()), 100, "{mode}");
        m.umount();
        m.fsck();
    }
}

#[test]
fn what_is_committed_survives_the_daemon() {
    if !can_mount() {
        return;
    }
    let options = format!("{OPTIONS},norestart");
    let m = Mounted::on(Scene::in_memory(), &options);
    let (mut next, committed) = (0, AtomicU64::new(0));
    for turn in 0..4 {
        let pid = m.info()["pid"].as_u64().unwrap().to_string();
        let (dead, over) = (AtomicBool::new(false), AtomicBool::new(false));
        scope(|s| {
            s.spawn(|| {
                // In the middle of one of the next.
                let enough = committed.load(Ordering::SeqCst) + 2 + 3 * turn;
                eventually("transactions", || {
                    committed.load(Ordering::SeqCst) >= enough || over.load(Ordering::SeqCst)
                });
                dead.store(true, Ordering::SeqCst);
                let killed = Command::new("kill").args(["-KILL", &pid]).finish();
                assert!(killed.unwrap().success());
            });
            let mut db = open(&m, "delete").unwrap();
            loop {
                match transaction(&mut db, next, 2000) {
                    Ok(()) => {
                        committed.fetch_add(1, Ordering::SeqCst);
                        next += 1;
                    }
                    Err(e) => {
                        over.store(true, Ordering::SeqCst);
                        assert!(dead.load(Ordering::SeqCst), "{e}");
                        break;
                    }
                }
            }
        });
        m.umount();
        m.mount(&options);
        let there = check(&open(&m, "delete").unwrap());
        assert!(there == next || there == next + 1, "{there} of {next}");
        next = there;
    }
    m.umount();
    m.fsck();
}
