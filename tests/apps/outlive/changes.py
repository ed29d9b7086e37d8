"""What an administrator changes of a mount while programs work on it and its daemons are killed."""

import json
import os
import random
import subprocess
import threading
import time

from mount import PATIENCE, Finding

# Users and groups whose limits are set: those that hammers give files to. No limit binds them, since each is more than there
# is: root may be without the capability that frees it from limits.
IDS = [*range(1, 6), *range(11, 16)]
LEAST, MOST = 8 << 30, 16 << 30
DATA = ["6G", "7G", "8G"]
REGION = ["128M", "160M", "192M"]
# A command that changes nothing says why: its daemon was killed, or something else is being changed.
CODES = (0, 1)


class Changer(threading.Thread):
    """Resizes, moves and limits, one after the other, until it is told to stop. Some commands are killed as well."""

    def __init__(self, mount, seed):
        super().__init__()
        self.mount, self.rng = mount, random.Random(seed)
        self.over, self.failure = threading.Event(), None
        self.places = 0
        self.done, self.failed, self.killed = {}, {}, 0
        # Of each user and group, the limits that it may have: the last one that was set, and what was tried since.
        self.limits = {}

    def run(self):
        try:
            while not self.over.is_set():
                # A limit takes a moment, the others some tenths of a second.
                self.rng.choice([self.data, self.region, self.move_data, self.move_region, self.limit, self.limit])()
                time.sleep(self.rng.uniform(0, 0.3))
        except (Finding, OSError, ValueError, subprocess.SubprocessError) as e:
            self.failure = e

    def stop(self):
        self.over.set()
        self.join(2 * PATIENCE)
        if self.is_alive():
            raise Finding("a change does not end")
        if self.failure:
            raise self.failure

    def told(self):
        return {"done": self.done, "failed": self.failed, "killed": self.killed}

    def data(self):
        self.change("resize --data", "resize", "-q", self.mount.point, "--data", self.rng.choice(DATA))

    def region(self):
        self.change("resize --pmem", "resize", "-q", self.mount.point, "--pmem", self.rng.choice(REGION))

    def move_data(self):
        self.change("migrate --data", "migrate", "-q", self.mount.point, "--data", self.place(self.mount.dir, "data"))

    def move_region(self):
        home = self.mount.shm if self.mount.cell.medium == "volatile" else self.mount.dir
        self.change("migrate --pmem", "migrate", "-q", self.mount.point, "--pmem", self.place(home, "region"))

    def place(self, home, name):
        self.places += 1
        return os.path.join(home, f"{name}-{self.places}")

    def limit(self):
        kind, number = self.rng.choice(["user", "group"]), self.rng.choice(IDS)
        size = self.rng.randrange(LEAST, MOST, 4096)
        possible = self.limits.setdefault((kind, number), [0])
        possible.append(size)
        if self.change("quota", "quota", self.mount.point, f"--{kind}", str(number), "--bytes", str(size)) == 0:
            possible[:] = [size]

    def change(self, name, *words):
        """The exit code; `None` of a command that was killed."""
        command = subprocess.Popen([self.mount.quayfs, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if self.rng.random() < 0.1:
            time.sleep(self.rng.uniform(0, 0.3))
            command.kill()
        said, _ = command.communicate(timeout=PATIENCE)
        if command.returncode == -9:
            self.killed += 1
            return None
        if command.returncode not in CODES:
            raise Finding(f"quayfs {' '.join(words)}: {command.returncode}: {said}")
        counts = self.failed if command.returncode else self.done
        counts[name] = counts.get(name, 0) + 1
        return command.returncode

    def check(self):
        """Of the volume at rest: each limit is one that it may be."""
        for kind in ("user", "group"):
            found = json.loads(self.mount.run("quota", self.mount.volume, f"--{kind}s", "--json"))
            found = {row[kind]: row["bytes_hard"] for row in found}
            for (_, number), possible in [(k, v) for k, v in self.limits.items() if k[0] == kind]:
                if found.get(number, 0) not in possible:
                    raise Finding(f"limit of {kind} {number}: {found.get(number, 0)}, not one of {possible}")
