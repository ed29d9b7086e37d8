"""sqlite.py DATABASE MODE TRANSACTIONS ACKNOWLEDGED: one insert a transaction, each noted when it
has returned; several processes may do so at once. `sqlite.py DATABASE check ACKNOWLEDGED [PROCESSES]`: is
every noted one there, and the rest sound?"""

import os
import sqlite3
import sys
import time


def write(path, mode, count, noted):
    db = sqlite3.connect(path, isolation_level=None, timeout=300)
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("pragma synchronous=FULL")
    db.execute("create table if not exists t(a integer primary key, b text)")
    note = os.open(noted, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    start = time.time()
    for _ in range(count):
        db.execute("begin immediate")
        i = (db.execute("select max(a) from t").fetchone()[0] or 0) + 1
        db.execute("insert into t values(?, ?)", (i, str(i) * (i % 50)))
        db.execute("commit")
        if mode == "delete":
            # SQLite takes a directory that it cannot open to sync it for one that needs no sync.
            os.fsync(directory)
        os.write(note, b"%d\n" % i)
    print(f"{count / (time.time() - start):.0f} transactions/s")


def check(path, noted, processes=1):
    db = sqlite3.connect(path)
    verdict = db.execute("pragma integrity_check").fetchone()[0]
    rows = dict(db.execute("select a, b from t"))
    acknowledged = [int(line) for line in open(noted)]
    lost = [i for i in acknowledged if rows.get(i) != str(i) * (i % 50)]
    extra = len(rows) - len(acknowledged)
    print(f"integrity_check {verdict}, {len(acknowledged)} acknowledged, {len(lost)} lost, {extra} more")
    sys.exit(0 if verdict == "ok" and not lost and 0 <= extra <= processes else 1)


if sys.argv[2] == "check":
    check(sys.argv[1], sys.argv[3], *map(int, sys.argv[4:]))
else:
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
