//! Transactions of SQLite, each one `INSERT` of a row of 100 bytes, durable when it returns
//! (`synchronous=FULL`). Checkpoints of the WAL come when SQLite wants them (every 1,000 pages) and
//! are part of it. A thread has a database of its own.
//!
//! SQLite makes its own system calls, which are not counted here; nor are the bytes.

use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::workload::{Flow, Info, MakeWorker, Place, Private, Worker, Workload};
use rusqlite::Connection;
use std::path::{Path, PathBuf};

const FAMILY: &str = "sqlite";
const INSERT: &str = "INSERT INTO t (a) VALUES (?1)";

/// Adds the workloads of this file.
pub fn add(all: &mut Vec<Box<dyn Workload>>) {
    let list: [(&'static str, &'static str, MakeWorker); 2] = [
        (
            "sqlite-wal",
            "insert a row of 100 bytes, durable, with a write-ahead log",
            |place, thread| worker(place, thread, "WAL"),
        ),
        (
            "sqlite-delete",
            "insert a row of 100 bytes, durable, with a rollback journal that is deleted each time",
            |place, thread| worker(place, thread, "DELETE"),
        ),
    ];
    for (name, about, worker) in list {
        let info = Info::new(name, FAMILY, about)
            .kernel_only("SQLite opens its files itself, through the kernel");
        all.push(Box::new(Private { info, worker }));
    }
}

fn failed(path: &Path) -> impl Fn(rusqlite::Error) -> Error {
    |e| Error::Sqlite {
        path: path.into(),
        why: e.to_string(),
    }
}

fn worker<'a>(place: &'a Place<'a>, thread: usize, mode: &str) -> Result<Box<dyn Worker + 'a>> {
    let path = place.own_dir(thread)?.path().join("db");
    match open(&path, mode) {
        Ok(db) => Ok(Box::new(Inserter { db, path })),
        Err(e) => Err(failed(&path)(e)),
    }
}

/// A new database in this mode.
fn open(path: &Path, mode: &str) -> rusqlite::Result<Connection> {
    let db = Connection::open(path)?;
    let set: String = db.pragma_update_and_check(None, "journal_mode", mode, |row| row.get(0))?;
    if !set.eq_ignore_ascii_case(mode) {
        // It refuses in silence.
        return Err(rusqlite::Error::InvalidParameterName(format!(
            "journal_mode={mode}, it stays {set}"
        )));
    }
    db.pragma_update(None, "synchronous", "FULL")?;
    db.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")?;
    Ok(db)
}

struct Inserter {
    db: Connection,
    path: PathBuf,
}

/// A prepared statement borrows its connection, so it cannot be kept beside it; finding it in the
/// connection's cache costs little.
impl Worker for Inserter {
    fn go(&mut self, m: &mut Meter) -> Result<Flow> {
        let inserted = (|| self.db.prepare_cached(INSERT)?.execute([ROW]))();
        inserted.map_err(failed(&self.path))?;
        m.op();
        Ok(Flow::More)
    }
}

/// 100 bytes.
const ROW: &str = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";
