"""probes.py DIR UNTIL KIND...: calls of each kind, by a process each, until a file named UNTIL is there.

Prints one line of JSON for each kind: how many calls returned, how long the longest took, how many were begun and done
while `UNTIL.held` was there, and which errors came, with the seconds after the first call.
"""

import errno
import json
import mmap
import os
import sys
import time

BLOCK, LARGE = 4096, 1 << 20
# Blocks of the file that is read, which are on the data device.
COLD = 2560


def small(root):
    """4 KiB and an `fsync`."""
    fd = os.open(f"{root}/small", os.O_CREAT | os.O_RDWR)

    def step(n):
        os.pwrite(fd, n.to_bytes(8, "big") * (BLOCK // 8), n % 256 * BLOCK)
        os.fsync(fd)

    return step


def large(root):
    """1 MiB and an `fsync`."""
    fd = os.open(f"{root}/large", os.O_CREAT | os.O_RDWR)

    def step(n):
        os.pwrite(fd, n.to_bytes(8, "big") * (LARGE // 8), n % 16 * LARGE)
        os.fsync(fd)

    return step


def read(root):
    """4 KiB that only the data device has."""
    fd = os.open(f"{root}/cold", os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, BLOCK)
    return lambda n: os.preadv(fd, [page], n * 7919 % COLD * BLOCK)


def names(root):
    """A directory made and removed."""

    def step(n):
        os.mkdir(f"{root}/d{n}")
        os.rmdir(f"{root}/d{n}")

    return step


def work(kind, root, until):
    step, held = globals()[kind](root), f"{until}.held"
    longest, calls, meanwhile, errors, begun = 0, 0, 0, {}, time.monotonic()
    while not os.path.exists(until):
        was_held, begin = os.path.exists(held), time.monotonic()
        try:
            step(calls)
            calls += 1
        except OSError as e:
            errors.setdefault(errno.errorcode[e.errno], round(begin - begun, 1))
            time.sleep(0.2)
        longest = max(longest, time.monotonic() - begin)
        meanwhile += was_held and os.path.exists(held)
        time.sleep(0.05)
    said = {"kind": kind, "calls": calls, "longest": longest, "meanwhile": meanwhile, "errors": errors}
    # At once with its end of line: several threads do this.
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


root, until, kinds = sys.argv[1], sys.argv[2], sys.argv[3:]
children = []
for kind in kinds:
    child = os.fork()
    if child == 0:
        work(kind, root, until)
        os._exit(0)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
