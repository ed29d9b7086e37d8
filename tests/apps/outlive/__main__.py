"""Daemons of mounts are killed at random moments, and no program may notice more than a pause.

`python3 tests/apps/outlive --help`. Each volume is mounted once, in one of the ways to mount (life.py); programs work on
it while its daemons are killed (programs.py). Each of them fails at the first call that fails, and checks all that it has
written. In the end the volume is unmounted and checked. With `--next` daemons are replaced instead, in turn by that
program and by the first one. With `--changes` volumes are resized, moved and given quotas meanwhile. With `--pauses` nothing
is checked but how long a client waits.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from life import Counts, Life, plan  # noqa: E402
from mount import Finding  # noqa: E402
from pauses import measure  # noqa: E402
from programs import LOADS, TOP  # noqa: E402

# So many findings are enough for one run.
ENOUGH = 10
FSX = os.path.join(TOP, "target/conformance/bin/fsx")


def arguments():
    parser = argparse.ArgumentParser(prog="outlive", description=__doc__)
    parser.add_argument("--quayfs", required=True, help="the program")
    parser.add_argument("--next", help="a program to replace it with, and the other way round, instead of kills")
    parser.add_argument("--kills", type=int, default=1000, help="or replacements; of a mount with --pauses")
    parser.add_argument("--life", type=int, default=25, help="kills of each volume, or replacements")
    parser.add_argument("--interval", type=float, default=0.8, help="seconds between kills, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="volumes at a time")
    parser.add_argument("--dir", default="/var/tmp", help="where volumes are made")
    parser.add_argument("--loads", default=",".join(LOADS), help="those of them, with commas between")
    parser.add_argument("--cells", default="", help="ways to mount with this in their names alone")
    parser.add_argument("--fsx", default=FSX, help="the program that `make conformance` installs")
    parser.add_argument("--packages", default="quayfs-journal", help="what of the source tree is built; '': the program")
    parser.add_argument("--changes", action="store_true", help="resize, migrate and quota meanwhile")
    parser.add_argument("--pauses", action="store_true", help="how long clients wait, with 100,000 files and 1 GiB staged")
    parser.add_argument("--media", default="volatile,file", help="and where the region lies then")
    parser.add_argument("--json", help="a file for the summary")
    args = parser.parse_args()
    for name in ("quayfs", "next", "fsx"):
        path = getattr(args, name)
        setattr(args, name, path and os.path.realpath(path))
    if not os.path.exists(args.fsx):
        print(f"no {args.fsx}: fsx.py of tests/apps/kills alone", file=sys.stderr)
        args.fsx = None
    return args


class Run:
    """All lives, some at a time."""

    def __init__(self, args):
        self.args, self.lock = args, threading.Lock()
        self.number, self.order = 0, plan(args)
        self.all, self.cells, self.loads = Counts(), {}, {}

    def work(self):
        while True:
            with self.lock:
                if self.all.kills >= self.args.kills or len(self.all.findings) >= ENOUGH:
                    return
                self.number += 1
                number = self.number
            cell, load = self.order[(number - 1) % len(self.order)]
            begin = time.monotonic()
            counts = Life(self.args, number, cell, load).live()
            with self.lock:
                parts = [self.cells.setdefault(cell.name, Counts()), self.loads.setdefault(load, Counts())]
                for part in [self.all, *parts]:
                    part.add(counts)
                print(f"{number}: {cell.name}, {load}: {counts.kills} ends of daemons, {counts.calls} calls, "
                      f"{time.monotonic() - begin:.0f} s; {self.all.kills} in all", flush=True)  # fmt: skip
                for finding in counts.findings:
                    print(f"FAILED {finding}", flush=True)

    def go(self):
        threads = [threading.Thread(target=self.work) for _ in range(self.args.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = lambda parts: {name: part.told() for name, part in sorted(parts.items())}
        return {"all": self.all.told(), "cells": told(self.cells), "loads": told(self.loads)}


def pauses(args):
    told = {}
    for medium in args.media.split(","):
        counts, facts = measure(args, medium)
        told[medium] = {**counts.told(), **facts}
        print(f"{medium}: {json.dumps(told[medium])}", flush=True)
    return told


def main():
    args = arguments()
    begin = time.time()
    try:
        told = pauses(args) if args.pauses else Run(args).go()
    except Finding as e:
        sys.exit(f"FAILED {e}")
    version = subprocess.run([args.quayfs, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    what = "replacements" if args.next else "kills"
    told = {"what": what, "version": version, "seed": args.seed, "seconds": round(time.time() - begin), **told}
    text = json.dumps(told, indent=1)
    print(text)
    if args.json:
        with open(args.json, "w") as f:
            f.write(text + "\n")
    sys.exit(1 if told.get("all", {}).get("findings") else 0)


main()
