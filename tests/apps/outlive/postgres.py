"""postgres.py DATA DIR UNTIL: pgbench goes on until the file UNTIL is there, and every transaction that it has counted is
there once. DATA is made on the mount, the socket and the log lie in DIR."""

import glob
import os
import re
import subprocess
import sys

data, place, until = sys.argv[1:]
BIN = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
AS = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups", "--"]
ENVIRONMENT = {**os.environ, "PGHOST": place, "PGUSER": "postgres", "PGDATABASE": "postgres", "HOME": place}


def run(program, *words):
    done = subprocess.run(
        [*AS, f"{BIN}/{program}", *words], env=ENVIRONMENT, capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode or "FATAL" in done.stderr or "PANIC" in done.stderr:
        sys.exit(f"{program} {' '.join(words)}: {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def query(text):
    return run("psql", "-qAt", "-c", text).strip()


def counted(text):
    failed = re.search(r"number of failed transactions: (\d+)", text)
    if failed and int(failed.group(1)):
        sys.exit(f"pgbench: {text}")
    return int(re.search(r"actually processed: (\d+)", text).group(1))


log = f"{place}/server.log"
for path, mode in [(place, 0o1777)]:
    os.chmod(path, mode)
os.mkdir(data)
subprocess.run(["chown", "postgres", data], check=True)
run("initdb", "-D", data, "--data-checksums", "-A", "trust", "-N")
# `pg_ctl` gives its streams to the server.
start = [*AS, f"{BIN}/pg_ctl", "-D", data, "-l", log, "-o", f"-c listen_addresses= -k {place}", "-w", "-t", "300", "start"]
subprocess.run(start, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, cwd="/")
try:
    run("pgbench", "-i", "-q", "-s", "2")
    total = 0
    open(f"{place}/server-ready", "w").close()
    while not total or not os.path.exists(until):
        total += counted(run("pgbench", "-n", "-c", "4", "-T", "5"))
        sums = query(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), "
            "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history), "
            "(SELECT count(*) FROM pgbench_history)"
        ).split("|")
        if len(set(sums[:4])) != 1 or int(sums[4]) != total:
            sys.exit(f"after {total} transactions: {sums}")
finally:
    run("pg_ctl", "-D", data, "-m", "fast", "-w", "-t", "300", "stop")
run("pg_checksums", "--check", "-D", data)
with open(log, errors="replace") as f:
    bad = [line for line in f if any(word in line for word in ("ERROR", "FATAL", "PANIC", "corrupt"))]
if bad:
    sys.exit(f"the server says: {bad[0]}")
print(total, flush=True)
