"""many.py MOUNT fill|empty FILES"""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time

root, what, count = f"{sys.argv[1]}/d", sys.argv[2], int(sys.argv[3])


def timed(label, work):
    start = time.time()
    result = work()
    took = time.time() - start
    print(f"many       {label}: {took:.1f} s, {count / took:.0f}/s")
    return result


def create():
    for i in range(count):
        os.close(os.open(f"{root}/file-{i:07}", os.O_CREAT | os.O_WRONLY))


def churn():
    """Makes and removes other names until it is killed."""
    while True:
        for i in range(300):
            os.link(f"{root}/file-{0:07}", f"{root}/other-{i}")
        for i in range(300):
            os.unlink(f"{root}/other-{i}")


class Directory:
    """An open directory, as C programs use it."""

    def __init__(self):
        c = self.c = ctypes.CDLL(None, use_errno=True)
        for call in (c.opendir, c.readdir):
            call.restype = ctypes.c_void_p
        for call in (c.readdir, c.telldir, c.closedir):
            call.argtypes = (ctypes.c_void_p,)
        c.telldir.restype = ctypes.c_long
        c.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)
        self.dir = c.opendir(root.encode())
        assert self.dir, os.strerror(ctypes.get_errno())

    def next(self):
        """The next file, None at the end; names that come and go are passed over."""
        while entry := self.c.readdir(self.dir):
            name = ctypes.string_at(entry + 19)
            if name.startswith(b"file-"):
                return name

    def tell(self):
        return self.c.telldir(self.dir)

    def seek(self, place):
        self.c.seekdir(self.dir, place)


def places():
    """Every file is seen once and stays at its place while others come and go."""
    other = os.fork()
    if other == 0:
        churn()
    try:
        walk = Directory()
        order = []
        while name := walk.next():
            order.append((name, walk.tell()))
        assert len(order) == count == len({name for name, _ in order}), len(order)
        again, chance = Directory(), random.Random(1)
        for _ in range(5000):
            at = chance.randrange(count - 1)
            for directory in (walk, again):
                directory.seek(order[at][1])
                found = directory.next()
                assert found == order[at + 1][0], (order[at], found)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


if what == "fill":
    os.mkdir(root)
    timed("create", create)
    timed("walk and seek while others make and remove", places)
    for name in os.listdir(root):
        if name.startswith("other-"):
            os.unlink(f"{root}/{name}")
names = timed("list", lambda: os.listdir(root))
assert len(names) == count == len(set(names)), len(names)
assert set(names) == {f"file-{i:07}" for i in range(count)}
if what == "empty":
    timed("rm -rf", lambda: subprocess.run(["rm", "-rf", root], check=True))
    assert os.listdir(sys.argv[1]) == []
