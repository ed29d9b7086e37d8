"""many.py MOUNT fill|empty FILES"""

import os
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


if what == "fill":
    os.mkdir(root)
    timed("create", create)
names = timed("list", lambda: os.listdir(root))
assert len(names) == count == len(set(names)), len(names)
assert set(names) == {f"file-{i:07}" for i in range(count)}
if what == "empty":
    timed("rm -rf", lambda: subprocess.run(["rm", "-rf", root], check=True))
    assert os.listdir(sys.argv[1]) == []
