"""full.py MOUNT: fills it, checks what `df` says against what went in, empties it, five times."""

import errno
import os
import sys

root = sys.argv[1]


def df():
    s = os.statvfs(root)
    return s.f_bfree, s.f_ffree


def until_full(step):
    n = 0
    try:
        while True:
            step(n)
            n += 1
    except OSError as e:
        assert e.errno == errno.ENOSPC, e
    return n


def data(n):
    with open(f"{root}/f{n}", "wb", buffering=0) as f:
        f.write(b"z" * (1 << 20))


def files(n):
    os.mkdir(f"{root}/d{n}")
    open(f"{root}/d{n}/f", "w").close()


empty = df()
for what in (data, files):
    seen = set()
    for _ in range(5):
        n = until_full(what)
        seen.add(n)
        if what is data:
            used = sum(os.stat(f"{root}/{x}").st_blocks for x in os.listdir(root)) // 8
            assert df()[0] == empty[0] - used, (df(), empty, used)
            fd = os.open(f"{root}/f0", os.O_WRONLY)
            assert os.pwrite(fd, b"y" * (1 << 20), 0) == 1 << 20
            os.close(fd)
        for x in os.listdir(root):
            if what is data:
                os.unlink(f"{root}/{x}")
            else:
                for y in os.listdir(f"{root}/{x}"):
                    os.unlink(f"{root}/{x}/{y}")
                os.rmdir(f"{root}/{x}")
        # Pages of bitmaps and intents come with their first use and stay: a few, never more.
        assert df()[0] == empty[0] and 0 <= empty[1] - df()[1] <= 15 * 16, (df(), empty)
    assert max(seen) - min(seen) <= max(seen) // 100, seen
    print(f"full       {what.__name__}: five times {sorted(seen)}, df exact each time")
