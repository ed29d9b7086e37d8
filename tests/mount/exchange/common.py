"""What both scripts use, put before them."""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import select
import signal
import struct
import subprocess
import sys
import threading
import time

B = 4096


def step():
    """Tells the process that waits for the script that it goes on."""
    os.write(1, b".")


def answer(call):
    """The errno, 0 for a success."""
    try:
        call()
        return 0
    except OSError as e:
        return e.errno


def same(got, want):
    assert got == want, f"{errno.errorcode.get(got, got)}, should be {errno.errorcode.get(want, want)}"


def filled(path, content, more=0):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | more, 0o755)
    assert os.write(fd, content) == len(content)
    return fd


def content(path):
    with open(path, "rb") as f:
        return f.read()


def kill_daemon(directory):
    os.kill(json.loads(os.getxattr(directory, "quayfs.status"))["pid"], signal.SIGKILL)


def among_deaths(directory, turns, each):
    """Calls `each` so often, while daemons die now and then."""
    over = threading.Event()

    def killer():
        while not over.wait(random.uniform(0.05, 0.2)):
            kill_daemon(directory)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        for turn in range(turns):
            each(turn)
            step()
            time.sleep(0.002)
    finally:
        over.set()
        thread.join()


def sent(fd, offset, count):
    """What sendfile hands out, which asks nobody for the size."""
    ours, theirs = os.pipe()
    n = os.sendfile(theirs, fd, offset, count)
    os.close(theirs)
    data = os.read(ours, n) if n else b""
    os.close(ours)
    return data


