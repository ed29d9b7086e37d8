"""large.py MOUNT fill|check FILES: directories of 10,000 files, of which each 1,000th has its own name in it."""

import os
import random
import subprocess
import sys
import time

root, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
EACH, FULL = 10_000, 1_000


def timed(label, work):
    start = time.time()
    done = work()
    took = time.time() - start
    print(f"large      {label}: {took:.1f} s, {done / took:.0f}/s", flush=True)


def path(number):
    return f"{root}/d{number // EACH:05}/file-{number:08}"


def fill():
    for number in range(count):
        if number % EACH == 0:
            os.mkdir(os.path.dirname(path(number)))
        file = os.open(path(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        if number % FULL == 0:
            os.write(file, path(number).encode())
        os.close(file)
    # All of it is acknowledged.
    file = os.open(root, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    return count


def list_some():
    directories = sorted(os.listdir(root))
    assert len(directories) == -(-count // EACH), len(directories)
    names = 0
    for directory in random.Random(1).sample(directories, min(10, len(directories))):
        names += len(os.listdir(f"{root}/{directory}"))
    return names


def find():
    found = subprocess.run(["find", root, "-type", "f", "-printf", "."], capture_output=True, check=True)
    assert len(found.stdout) == count, len(found.stdout)
    return count


def read():
    numbers = random.Random(2)
    reads = min(10_000, count)
    for _ in range(reads):
        number = numbers.randrange(count)
        number -= number % FULL if numbers.random() < 0.5 else 0
        with open(path(number), "rb") as file:
            content = file.read()
        expected = path(number).encode() if number % FULL == 0 else b""
        assert content == expected, (path(number), content)
    return reads


if what == "fill":
    timed("create", fill)
else:
    timed("ls of ten directories", list_some)
    timed("random reads", read)
    timed("find", find)
