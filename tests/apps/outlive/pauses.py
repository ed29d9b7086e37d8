"""How long a client waits whose daemon is killed, with 100,000 files and 1 GiB that is staged."""

import os
import random
import re
import subprocess
import sys
import threading
import time

from life import Counts, running
from mount import Cell, Finding, Mount

FILL = """
import os, sys
root = sys.argv[1]
for d in range(100):
    os.mkdir(f"{root}/d{d}")
    for f in range(1000):
        with open(f"{root}/d{d}/f{f}", "wb", buffering=0) as file:
            file.write(b"q" * 4096)
with open(f"{root}/big", "wb", buffering=0) as file:
    for i in range(700):
        file.write(bytes([i % 256]) * (1 << 20))
"""
CLIENTS = 4


def staged(mount):
    return int(re.search(r'"staged_blocks": *(\d+)', mount.run("info", "--json", mount.point)).group(1))


class Client(threading.Thread):
    """Looks at files one after the other, in a process of its own, and says how long the longest look took."""

    LOOKS = """
import os, random, sys, time
root, until = sys.argv[1:]
longest, rng = 0, random.Random(os.getpid())
while not os.path.exists(until):
    begin = time.monotonic()
    with open(f"{root}/d{rng.randrange(100)}/f{rng.randrange(1000)}", "rb") as f:
        assert f.read() == b"q" * 4096
    longest = max(longest, time.monotonic() - begin)
    time.sleep(0.001)
print(longest)
"""

    def __init__(self, mount, until):
        super().__init__()
        words = [sys.executable, "-c", self.LOOKS, mount.point, until]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.start()

    def run(self):
        self.out, self.err = self.process.communicate()


def measure(args, medium):
    counts = Counts(lives=1)
    rng = random.Random(args.seed)
    # As durable as it is there by itself: on a disk it would take hours to fill it otherwise.
    cell = Cell(medium, medium, "rw", size="5G")
    mount = Mount(args.quayfs, args.dir, cell)
    mount.begin()
    subprocess.run([sys.executable, "-c", FILL, mount.point], check=True)
    held = [staged(mount)]
    until = os.path.join(mount.dir, "until")
    clients = [Client(mount, until) for _ in range(CLIENTS)]
    try:
        for _ in range(args.kills):
            time.sleep(rng.uniform(0.3, 1.2))
            at = mount.kill(min)
            counts.kills += 1
            counts.machine.append(running())
            counts.pauses.append(mount.answered() - at)
            held.append(staged(mount))
    finally:
        open(until, "w").close()
        for client in clients:
            client.join()
    if bad := [c.err for c in clients if c.process.returncode]:
        raise Finding(f"a client has failed: {bad[0]}")
    counts.pss, counts.rss = mount.memory()
    blocks = 256
    facts = {"staged_mib": {"least": min(held) // blocks, "most": max(held) // blocks}, "longest_call_s": round(max(float(c.out) for c in clients), 3)}
    mount.end(counts.kills)
    mount.remove()
    return counts, facts
