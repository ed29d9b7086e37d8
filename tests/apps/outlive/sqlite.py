"""Transactions of a database whose sum has to stay what it is, and whose log has to name each of them once."""

import os
import random
import sqlite3
import sys

root, mode, until = sys.argv[1:]
os.mkdir(root)
ACCOUNTS = 50
db = sqlite3.connect(os.path.join(root, "db"), isolation_level=None)
db.execute(f"PRAGMA journal_mode={mode}")
db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
db.execute("CREATE TABLE done (n INTEGER PRIMARY KEY)")
db.executemany("INSERT INTO account VALUES (?, 100)", [(n,) for n in range(ACCOUNTS)])
rng = random.Random(mode)
n = 0


def check():
    (total,) = db.execute("SELECT sum(balance) FROM account").fetchone()
    (count, last) = db.execute("SELECT count(*), max(n) FROM done").fetchone()
    assert total == 100 * ACCOUNTS, total
    assert count == (last or 0) == n, (count, last, n)


while not os.path.exists(until):
    n += 1
    amount = rng.randint(1, 50)
    db.execute("BEGIN")
    db.execute("UPDATE account SET balance = balance - ? WHERE id = ?", (amount, rng.randrange(ACCOUNTS)))
    db.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (amount, rng.randrange(ACCOUNTS)))
    db.execute("INSERT INTO done VALUES (?)", (n,))
    db.execute("COMMIT")
    if n % 100 == 0:
        check()
check()
assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
db.close()
print(n, flush=True)
