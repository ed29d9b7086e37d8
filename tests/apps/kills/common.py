"""What the programs of this directory share: ledgers outside of the mount, and their two verbs.

Each program is run as `PROGRAM write DIR LEDGERS SEED` until its file system dies, and as
`PROGRAM check DIR LEDGERS SEED` afterwards. SYNC=1 in the environment: an operation counts as
acknowledged when the `fsync` after it has returned. The check prints one line of JSON; findings go to
the standard error, one line each. A check also notes what it found where a crash may leave one of
several things: from there on it has to stay.
"""

import json
import os
import sys

SYNC = os.environ.get("SYNC") == "1"
PAGE = 4096


class Ledger:
    """Lines that are out of this process before `note` returns."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def note(self, *words):
        os.write(self.fd, (" ".join(map(str, words)) + "\n").encode())


def lines(path):
    """Words of each whole line."""
    try:
        with open(path) as f:
            return [line.split() for line in f.read().split("\n")[:-1]]
    except FileNotFoundError:
        return []


def whole(done, wanted):
    """A short write is an error: its rest met a file system that was dead."""
    if done != wanted:
        raise OSError(f"{done} of {wanted} bytes written")


def replace(path, data):
    """The file holds `data` from here on, or what it held before."""
    with open(path + ".new", "wb") as f:
        f.write(data)
    os.rename(path + ".new", path)


def sync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Findings:
    """What is wrong, said at once; the first few of it."""

    def __init__(self):
        self.count = 0

    def add(self, text):
        self.count += 1
        if self.count <= 5:
            print(f"finding: {text}", file=sys.stderr)


def main(write, check):
    """Runs what the command line says. An `OSError` ends a writer: it is for the caller to know
    whether the file system was dead by then."""
    verb, directory, ledgers, seed = sys.argv[1:5]
    os.makedirs(ledgers, exist_ok=True)
    if verb == "write":
        try:
            # Relative paths stay in the file system when its mount point is taken away.
            os.chdir(directory)
            write(".", ledgers, seed)
        except OSError as e:
            print(f"ended: {e}", file=sys.stderr)
            sys.exit(10)
        return
    findings = Findings()
    acknowledged = check(directory, ledgers, seed, findings)
    print(json.dumps({"acknowledged": acknowledged, "findings": findings.count}))
    sys.exit(1 if findings.count else 0)
