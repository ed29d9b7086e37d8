"""Daemons of mounts are killed at random moments, and no program may notice more than a pause.

`python3 tests/apps/outlive --help`. Each volume is mounted once, in one of the ways to mount; programs work on it while
its daemons are killed, several hammers (hammer.py) and databases (sqlite.py). Each of them fails at the first call that
fails, and checks all that it has written. In the end the volume is unmounted and checked. With `--next` daemons are
replaced instead, in turn by that program and by the first one.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))

# Where the region lies, and what `mkfs` is told.
MEDIA = {
    "disk": lambda d, shm: ([f"{d}/volume", "--size", "1G"], f"{d}/volume"),
    "volatile": lambda d, shm: (
        [f"{d}/volume", "--pmem", f"{shm}/region", "--pmem-size", "128M", "--data-size", "1G", "--sparse"],
        f"{d}/volume",
    ),
}
OPTIONS = [
    "commit=5",
    "commit=1",
    "durability=op",
    "writeback",
    "durability=op,writeback",
    "durability=commit,writeback,commit=1",
    "data=ordered",
    "open=elide",
    "memory=32M,commit=2",
    "atomic_writes",
]


class Mount:
    """A volume of its own, mounted."""

    def __init__(self, args, medium, options):
        self.quayfs = args.quayfs
        self.dir = tempfile.mkdtemp(prefix="quayfs-outlive-", dir=args.dir)
        self.shm = tempfile.mkdtemp(prefix="quayfs-outlive-", dir="/dev/shm")
        self.point = os.path.join(self.dir, "mnt")
        os.mkdir(self.point)
        how, self.volume = MEDIA[medium](self.dir, self.shm)
        self.run("mkfs", *how)
        self.run("mount", "-o", options, self.volume, self.point)
        self.supervisor = self.find_supervisor()

    def run(self, *words):
        done = subprocess.run([self.quayfs, *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"quayfs {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def find_supervisor(self):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            if words[0] == b"quayfs-supervisor" and self.point.encode() in words:
                return int(pid)
        raise SystemExit(f"no supervisor of {self.point}")

    def daemon(self):
        try:
            with open(f"/proc/{self.supervisor}/task/{self.supervisor}/children") as f:
                children = f.read().split()
        except FileNotFoundError:
            return None
        return int(children[0]) if children else None

    def kill(self):
        pid = self.daemon()
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def replace(self, program):
        old = self.daemon()
        said = self.run("restart", self.point, "--binary", program)
        if self.daemon() == old or os.readlink(f"/proc/{self.daemon()}/exe") != program:
            raise SystemExit(f"{program} does not serve {self.point}: {said}")
        return int(said.split(" ms")[0].split()[-1]) / 1000

    def answers(self):
        """Waits for an answer, and says how long that took."""
        start = time.monotonic()
        os.statvfs(self.point)
        return time.monotonic() - start

    def end(self):
        self.run("umount", self.point)
        deadline = time.monotonic() + 20
        while os.path.exists(f"/proc/{self.supervisor}"):
            if time.monotonic() > deadline:
                raise SystemExit(f"the supervisor {self.supervisor} is still there after the unmount")
            time.sleep(0.05)
        self.run("fsck", self.volume)

    def remove(self):
        shutil.rmtree(self.dir)
        shutil.rmtree(self.shm)


def programs(mount, args, seed, until):
    """Those that work on a mount."""
    for n in range(args.hammers):
        yield [sys.executable, f"{HERE}/hammer.py", f"{mount.point}/hammer{n}", str(seed + n), until]
    for n, mode in enumerate(["delete", "wal"]):
        yield [sys.executable, f"{HERE}/sqlite.py", f"{mount.point}/sqlite{n}", mode, until]


def life(args, rng, number):
    """One volume, and some kills; how many, and the pauses."""
    medium, options = rng.choice(sorted(MEDIA)), rng.choice(OPTIONS)
    seed = rng.randrange(10**6)
    print(f"{number}: {medium}, {options}, seed {seed}", flush=True)
    mount = Mount(args, medium, options)
    until = os.path.join(mount.dir, "until")
    running = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for words in programs(mount, args, seed, until)
    ]
    kills, pauses = 0, []
    while kills < args.life and all(p.poll() is None for p in running):
        time.sleep(rng.uniform(0, args.interval))
        if args.next:
            pauses.append(mount.replace([args.next, args.quayfs][kills % 2]))
            kills += 1
        elif mount.kill():
            kills += 1
            # Most daemons are left alone until they answer, the others may die while they recover.
            if rng.random() < 0.9:
                pauses.append(mount.answers())
    open(until, "w").close()
    calls, failed = 0, []
    for p in running:
        out, err = p.communicate(timeout=300)
        if p.returncode:
            failed.append(f"{' '.join(p.args)}\n{out}{err}")
        else:
            calls += int(out.split()[-1])
    if failed:
        raise SystemExit(f"{len(failed)} programs failed; {mount.dir} is left as it is\n" + "\n".join(failed))
    mount.end()
    mount.remove()
    print(f"   {kills} {args.what}, {calls} calls", flush=True)
    return kills, calls, pauses


def main():
    parser = argparse.ArgumentParser(prog="outlive", description=__doc__)
    parser.add_argument("--quayfs", required=True, help="the program")
    parser.add_argument("--next", help="a program to replace it with, and the other way round, instead of kills")
    parser.add_argument("--kills", type=int, default=1000, help="or replacements")
    parser.add_argument("--life", type=int, default=25, help="kills of each volume, or replacements")
    parser.add_argument("--hammers", type=int, default=3)
    parser.add_argument("--interval", type=float, default=0.8, help="seconds between kills, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", default="/var/tmp", help="where volumes are made")
    args = parser.parse_args()
    args.quayfs = os.path.realpath(args.quayfs)
    args.next = args.next and os.path.realpath(args.next)
    args.what = "replacements" if args.next else "kills"
    rng = random.Random(args.seed)
    kills, calls, pauses, number = 0, 0, [], 0
    while kills < args.kills:
        number += 1
        some, more, waited = life(args, rng, number)
        kills, calls, pauses = kills + some, calls + more, pauses + waited
    pauses.sort()
    at = lambda share: pauses[min(len(pauses) - 1, int(share * len(pauses)))]
    print(f"{kills} {args.what}, {calls} calls: no program has noticed")
    print(f"pauses: p50 {at(0.5):.2f} s, p99 {at(0.99):.2f} s, longest {pauses[-1]:.2f} s")


main()
