"""Lives of many volumes, a few at a time, and what came of them: what `kills` and `cuts` have in common."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from daemon import Finding
from life import APPS, HERE, ROUNDS

TOP = os.path.normpath(f"{HERE}/../../..")


def parser(name, about):
    """What both can be told."""
    p = argparse.ArgumentParser(prog=name, description=about)
    p.add_argument("--rounds", type=int, default=50, help="rounds, shared among the programs (50)")
    p.add_argument("--seed", default="1", help="decides what is made and done, though not when exactly (1)")
    p.add_argument("--apps", default=",".join(APPS), help="which programs, separated by commas")
    p.add_argument("--life", type=int, help="only this volume of each program, as a failure says")
    p.add_argument("--jobs", type=int, default=2, help="volumes at once (2)")
    p.add_argument("--quayfs", default=os.environ.get("QUAYFS", f"{TOP}/target/release/quayfs"))
    p.add_argument("--work", default="/var/tmp", help="where volumes on disk are")
    p.add_argument("--fast", default="/dev/shm", help="where regions in memory are")
    return p


class Run:
    """All lives of a run. `kind`: what makes one; `name`: the target of `make`."""

    def __init__(self, name, options, kind):
        self.name, self.options, self.kind = name, options, kind
        self.apps = options.apps.split(",")
        self.lock = threading.Lock()
        self.failed = []
        self.sums = {a: dict.fromkeys(kind.COLUMNS, 0) for a in self.apps}
        self.work = tempfile.mkdtemp(prefix=f"quayfs-{name}-", dir=options.work)
        self.fast = tempfile.mkdtemp(prefix=f"quayfs-{name}-", dir=options.fast)
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
        life = self.kind(self.options, self.work, self.fast, app, number)
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
        for column, n in life.counts().items():
            s[column] += n
        if finding is not None:
            s["fsck" if finding.startswith("fsck") else "lost"] += 1

    def tell(self, life, number, finding):
        s = life.volume.shape
        print(f"FAILED {life.app}, volume {number}, round {life.rounds}: {finding}")
        print(f"  {s}")
        print(f"  kept: {life.home} {life.volume.fast}")
        print(f"  again: make {self.name} SEED={self.options.seed} APPS={life.app} LIFE={number}", flush=True)

    def table(self):
        print(f"{'':10}" + "".join(f"{c:>13}" for c in self.kind.COLUMNS))
        for app in self.apps:
            print(f"{app:10}" + "".join(f"{self.sums[app][c]:>13}" for c in self.kind.COLUMNS))
        total = {c: sum(s[c] for s in self.sums.values()) for c in self.kind.COLUMNS}
        print(f"{'all':10}" + "".join(f"{total[c]:>13}" for c in self.kind.COLUMNS))

    def clean_up(self):
        if not self.failed:
            shutil.rmtree(self.work, ignore_errors=True)
            shutil.rmtree(self.fast, ignore_errors=True)


def commit():
    run = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown commit"


def program(path):
    """The absolute path of a program that was built before."""
    path = os.path.abspath(path)
    if not os.access(path, os.X_OK):
        sys.exit(f"no {path}: cargo build --release first")
    return path


def main(name, options, kind):
    options.quayfs = program(options.quayfs)
    begin, at = time.monotonic(), commit()
    run = Run(name, options, kind)
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
