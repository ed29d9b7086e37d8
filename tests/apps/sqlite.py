"""sqlite.py DATABASE MODE TRANSACTIONS ACKNOWLEDGED: one insert a transaction, each noted when it
has returned. `sqlite.py DATABASE check ACKNOWLEDGED`: is every noted one there, and the rest sound?"""

import os
import sqlite3
import sys
import time


def write(path, mode, count, noted):
    db = sqlite3.connect(path, isolation_level=None)
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("pragma synchronous=FULL")
    db.execute("create table if not exists t(a integer primary key, b text)")
    note = os.open(noted, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    first = (db.execute("select max(a) from t").fetchone()[0] or 0) + 1
    start = time.time()
    for i in range(first, first + count):
        db.execute("insert into t values(?, ?)", (i, str(i) * (i % 50)))
        os.write(note, b"%d\n" % i)
    print(f"{count / (time.time() - start):.0f} transactions/s")


def check(path, noted):
    db = sqlite3.connect(path)
    verdict = db.execute("pragma integrity_check").fetchone()[0]
    rows = dict(db.execute("select a, b from t"))
    acknowledged = [int(line) for line in open(noted)]
    lost = [i for i in acknowledged if rows.get(i) != str(i) * (i % 50)]
    extra = len(rows) - len(acknowledged)
    print(f"integrity_check {verdict}, {len(acknowledged)} acknowledged, {len(lost)} lost, {extra} more")
    sys.exit(0 if verdict == "ok" and not lost and extra in (0, 1) else 1)


if sys.argv[2] == "check":
    check(sys.argv[1], sys.argv[3])
else:
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
