"""The daemon is killed at random moments under five programs: `python3 tests/apps/kills --help`."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from daemon import Finding  # noqa: E402
from life import APPS, HERE, MOMENTS, ROUNDS, Life  # noqa: E402

# Of a round each: over rings, kills by the moment, recoveries that undid half a checkpoint round, operations
# acknowledged, volumes with something lost or otherwise wrong, volumes where fsck found something.
COLUMNS = ["rounds", "rings", *MOMENTS, "undone", "acknowledged", "lost", "fsck"]
TOP = os.path.normpath(f"{HERE}/../../..")


def arguments():
    p = argparse.ArgumentParser(prog="kills", description="Kills the daemon at random moments under five programs.")
    p.add_argument("--rounds", type=int, default=50, help="rounds, shared among the programs (50)")
    p.add_argument("--seed", default="1", help="decides what is made and done, though not when exactly (1)")
    p.add_argument("--apps", default=",".join(APPS), help="which programs, separated by commas")
    p.add_argument("--life", type=int, help="only this volume of each program, as a failure says")
    p.add_argument("--jobs", type=int, default=2, help="volumes at once (2)")
    p.add_argument("--quayfs", default=os.environ.get("QUAYFS", f"{TOP}/target/release/quayfs"))
    p.add_argument("--work", default="/var/tmp", help="where volumes on disk are")
    p.add_argument("--fast", default="/dev/shm", help="where regions in memory are")
    return p.parse_args()


class Run:
    """All lives of a run, and what came of them."""

    def __init__(self, options):
        self.options = options
        self.apps = options.apps.split(",")
        self.lock = threading.Lock()
        self.failed = []
        self.sums = {a: dict.fromkeys(COLUMNS, 0) for a in self.apps}
        self.work = tempfile.mkdtemp(prefix="quayfs-kills-", dir=options.work)
        self.fast = tempfile.mkdtemp(prefix="quayfs-kills-", dir=options.fast)
        self.jobs = list(self.plan())

    def plan(self):
        """Lives of all programs in turn: program, number, rounds."""
        each = -(-self.options.rounds // len(self.apps))
        if self.options.life is not None:
            yield from ((a, self.options.life, ROUNDS) for a in self.apps)
            return
        for number in range(-(-each // ROUNDS)):
            for app in self.apps:
                yield app, number, min(ROUNDS, each - number * ROUNDS)

    def work_off(self):
        while True:
            with self.lock:
                if not self.jobs or len(self.failed) >= 3:
                    return
                job = self.jobs.pop(0)
            self.one(*job)

    def one(self, app, number, rounds):
        o = self.options
        life = Life(o.quayfs, self.work, self.fast, o.seed, app, number)
        finding = None
        try:
            life.live(rounds)
        except Finding as e:
            finding = str(e)
        except Exception as e:
            finding = f"{type(e).__name__}: {e}"
        finally:
            life.clean_up(keep=finding is not None)
        with self.lock:
            self.add(life, finding)
            if finding is not None:
                self.failed.append(life)
                self.tell(life, number, finding)

    def add(self, life, finding):
        s = self.sums[life.app]
        s["rounds"] += life.rounds
        s["rings"] += life.rounds if life.volume.shape.rings else 0
        s["acknowledged"] += life.acknowledged
        s["undone"] += life.volume.undone
        for moment, n in life.killed.items():
            s[moment] += n
        if finding is not None:
            s["fsck" if finding.startswith("fsck") else "lost"] += 1

    def tell(self, life, number, finding):
        s = life.volume.shape
        print(f"FAILED {life.app}, volume {number}, round {life.rounds}: {finding}")
        print(f"  {s}")
        print(f"  kept: {life.home} {life.volume.fast}")
        print(f"  again: make kills SEED={self.options.seed} APPS={life.app} LIFE={number}", flush=True)

    def table(self):
        print(f"{'':10}" + "".join(f"{c:>13}" for c in COLUMNS))
        for app in self.apps:
            print(f"{app:10}" + "".join(f"{self.sums[app][c]:>13}" for c in COLUMNS))
        total = {c: sum(s[c] for s in self.sums.values()) for c in COLUMNS}
        print(f"{'all':10}" + "".join(f"{total[c]:>13}" for c in COLUMNS))

    def clean_up(self):
        if not self.failed:
            shutil.rmtree(self.work, ignore_errors=True)
            shutil.rmtree(self.fast, ignore_errors=True)


def commit():
    run = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown commit"


def main():
    options = arguments()
    options.quayfs = os.path.abspath(options.quayfs)
    if not os.access(options.quayfs, os.X_OK):
        sys.exit(f"no {options.quayfs}: cargo build --release first")
    begin, at = time.monotonic(), commit()
    run = Run(options)
    # Either signal lets the lives end that are under way.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: run.jobs.clear())
    threads = [threading.Thread(target=run.work_off) for _ in range(options.jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    run.table()
    version = subprocess.run([options.quayfs, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    print(f"seed {options.seed}, {version}, commit {at}, {time.monotonic() - begin:.0f} s")
    run.clean_up()
    sys.exit(1 if run.failed else 0)


main()
