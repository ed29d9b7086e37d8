"""SQLite with synchronous=FULL, in WAL or DELETE mode. A transaction inserts rows that follow from its
number, moves money between accounts, and sometimes deletes old rows; it is noted when COMMIT returned.
"""

import os
import random
import sqlite3

from common import SYNC, Ledger, lines, main, replace, sync_dir

ACCOUNTS = 20


def rows_of(n):
    rng = random.Random(n)
    return [rng.randbytes(rng.choice([10, 300, 5000])).hex() for _ in range(rng.randrange(1, 6))]


def connect(directory):
    return sqlite3.connect(f"{directory}/db", isolation_level=None)


def mode_of(seed):
    return random.Random(seed).choice(["wal", "delete"])


def write(directory, ledgers, seed):
    ledger = Ledger(f"{ledgers}/noted")
    try:
        db = connect(directory)
        db.execute(f"pragma journal_mode={mode_of(seed)}")
        # In DELETE mode the commit is an unlink, and FULL does not sync the directory after it.
        db.execute(f"pragma synchronous={'EXTRA' if SYNC else 'FULL'}")
        db.execute("pragma wal_autocheckpoint=100")
        db.execute("create table if not exists t(n integer, i integer, b text, primary key(n, i))")
        db.execute("create table if not exists a(id integer primary key, v integer)")
        if not db.execute("select count(*) from a").fetchone()[0]:
            db.execute("begin immediate")
            db.executemany("insert into a values(?, 100)", [(i,) for i in range(ACCOUNTS)])
            db.execute("insert into t values(0, 0, 'start')")
            db.execute("commit")
        n = db.execute("select max(n) from t").fetchone()[0]
        rng = random.Random(f"{seed}/{n}")
        while True:
            n += 1
            transaction(db, n, rng)
            # SQLite takes a directory that it cannot open any more for one that it has synced.
            if SYNC and mode_of(seed) == "delete":
                sync_dir(directory)
            ledger.note(n)
    except sqlite3.Error as e:
        raise OSError(f"{type(e).__name__}: {e}") from e


def transaction(db, n, rng):
    db.execute("begin immediate")
    db.executemany("insert into t values(?, ?, ?)", [(n, i, b) for i, b in enumerate(rows_of(n))])
    one, other = rng.sample(range(ACCOUNTS), 2)
    db.execute("update a set v = v - 7 where id = ?", (one,))
    db.execute("update a set v = v + 7 where id = ?", (other,))
    if n % 50 == 0:
        # Keeps the database small, and makes SQLite reuse pages.
        db.execute("delete from t where n between 1 and ?", (n - 50,))
    db.execute("commit")


def check(directory, ledgers, _seed, findings):
    if not os.path.exists(f"{directory}/db"):
        if lines(f"{ledgers}/noted"):
            findings.add("the database is gone")
        return 0
    db = connect(directory)
    try:
        verdict = db.execute("pragma integrity_check").fetchall()
        if verdict != [("ok",)]:
            findings.add(f"integrity_check: {verdict[:3]}")
        if not db.execute("select 1 from sqlite_master where name = 'a'").fetchall():
            held, total = {}, 100 * ACCOUNTS
        else:
            held = {}
            for n, i, b in db.execute("select n, i, b from t order by n, i"):
                held.setdefault(n, []).append(b)
            total = db.execute("select sum(v) from a").fetchone()[0] or 0
    except sqlite3.Error as e:
        findings.add(f"{type(e).__name__}: {e}")
        return 0
    ledger = lines(f"{ledgers}/noted")
    noted = [int(w[0]) for w in ledger]
    newest = max(held, default=0)
    if held and total != 100 * ACCOUNTS:
        findings.add(f"accounts hold {total}")
    if noted and newest not in (noted[-1], noted[-1] + 1):
        findings.add(f"transaction {newest} is the last, {noted[-1]} was acknowledged")
    # Deleted are those before the last multiple of 50, less 50.
    low = max(newest // 50 * 50 - 50, 0)
    for n in range(low + 1, newest + 1):
        if held.get(n) != rows_of(n):
            findings.add(f"transaction {n} is not there as a whole")
    if any(0 < n <= low for n in held):
        findings.add("deleted rows are there")
    db.close()
    if not findings.count:
        replace(f"{ledgers}/noted", b"%d found\n" % newest)
    return sum(len(w) == 1 for w in ledger)


if __name__ == "__main__":
    main(write, check)
