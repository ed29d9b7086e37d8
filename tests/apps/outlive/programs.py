"""What works on a mount while its daemons end. Each of these ends with the first call that fails, and checks what it
has written."""

import json
import os
import shutil
import signal
import subprocess
import time

from mount import PATIENCE, PYTHON, Finding

HERE = os.path.dirname(os.path.abspath(__file__))
KILLS = os.path.join(os.path.dirname(HERE), "kills")
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
LEDGERS = ["fsx", "sqlite", "records", "git", "untar"]
# Where the kernel writes behind, a program that is killed while the kernel writes the times of a file for it leaves a note
# at that file that something could not be written (`fuse_flush_time_update`, Linux 6.18). The next close of the file
# reports it, by any program. The content shows whether anything is missing.
TAKE_NOTES = """
import errno, os, sys
for where, _, names in os.walk(sys.argv[1]):
    for path in (os.path.join(where, name) for name in names):
        if os.path.isfile(path) and not os.path.islink(path):
            try:
                os.close(os.open(path, os.O_RDONLY))
            except OSError as e:
                if e.errno != errno.EIO:
                    raise
"""


class Program:
    """Works until it is told to end, and then says in a line how much it has done."""

    def __init__(self, mount, name, words, finite=False, ready=None):
        self.mount, self.name, self.finite, self.ready = mount, name, finite, ready
        self.out = os.path.join(mount.dir, f"{name}.out")
        with open(self.out, "w") as f:
            self.process = subprocess.Popen(
                [*mount.become, *words], stdout=f, stderr=subprocess.STDOUT, start_new_session=True, cwd=mount.dir
            )

    def text(self):
        with open(self.out, errors="replace") as f:
            return f.read().strip()

    def runs(self):
        return self.process.poll() is None

    def has_begun(self):
        """Whether it is past what it prepares, if it prepares anything that takes long."""
        return not self.ready or os.path.exists(self.ready)

    def failed(self):
        """Whether it has ended as it should not."""
        return self.process.poll() not in ((None, 0) if self.finite else (None,))

    def end(self):
        """How much it has done."""
        code = self.process.wait(PATIENCE * (20 if self.finite else 1))
        if code:
            raise Finding(f"{self.name} ended with {code}: {self.text()[-2000:]}")
        return int(self.text().split()[-1])

    def abandon(self):
        """It is of no use any more."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(PATIENCE)


class Ledger(Program):
    """One of those of `kills`, which work for ever, and whose ledger is compared with what is there."""

    def __init__(self, mount, app, number, seed):
        name = f"{app}{number}"
        self.tree, self.ledgers = f"{mount.point}/{name}", f"{mount.dir}/{name}-ledgers"
        self.words = [PYTHON, "-B", f"{KILLS}/{app}.py"]
        self.rest = [self.tree, self.ledgers, str(seed)]
        subprocess.run([*mount.become, "mkdir", self.tree, self.ledgers], check=True, timeout=PATIENCE)
        super().__init__(mount, name, [*self.words, "write", *self.rest])

    def end(self):
        if not self.runs():
            raise Finding(f"{self.name} ended with {self.process.returncode}: {self.text()[-2000:]}")
        # What it has begun is carried out in part or as a whole, as its check knows.
        self.abandon()
        deadline = time.monotonic() + PATIENCE
        while group_lives(self.process.pid):
            if time.monotonic() > deadline:
                raise Finding(f"{self.name} does not end")
            time.sleep(0.02)
        if "writeback" in self.mount.cell.options.split(","):
            notes = [*self.mount.become, PYTHON, "-c", TAKE_NOTES, self.tree]
            subprocess.run(notes, check=True, timeout=PATIENCE)
        done = subprocess.run(
            [*self.mount.become, *self.words, "check", *self.rest], capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode:
            raise Finding(f"{self.name}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)["acknowledged"]


def group_lives(group):
    """Whether a process of it runs, other than as a zombie that nobody has waited for."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                state, _, theirs = f.read().rpartition(") ")[2].split()[:3]
        except OSError:
            continue
        if int(theirs) == group and state not in "ZX":
            return True
    return False


def python(script):
    return [PYTHON, "-B", f"{HERE}/{script}"]


def hammers(mount, args, seed, until, count=3):
    for n in range(count):
        yield Program(mount, f"hammer{n}", [*python("hammer.py"), f"{mount.point}/hammer{n}", str(seed + n), until])


def databases(mount, args, seed, until):
    yield from hammers(mount, args, seed, until)
    for mode in ["delete", "wal"]:
        yield Program(mount, f"sqlite-{mode}", [*python("sqlite.py"), f"{mount.point}/sqlite-{mode}", mode, until])


def clients(mount, args, seed, until):
    yield from hammers(mount, args, seed, until, 16)


def ledgers(mount, args, seed, until):
    for n, app in enumerate(LEDGERS):
        yield Ledger(mount, app, n, seed)


def fsx(mount, args, seed, until):
    """Two of the program that `make conformance` installs, where it is, and as many of our own."""
    for n in range(2):
        yield Ledger(mount, "fsx", n, seed + n)
    if args.fsx:
        for n, lazy in enumerate(["followed", "lazy"]):
            words = [args.fsx, f"{mount.point}/file{n}", str(seed + n), lazy, until]
            yield Program(mount, f"fsx-{lazy}", [*python("fsx.py"), *words])


def postgres(mount, args, seed, until):
    yield Program(mount, "postgres", [*python("postgres.py"), f"{mount.point}/data", mount.dir, until],
                  ready=f"{mount.dir}/server-ready")  # fmt: skip


def build(mount, args, seed, until):
    archive = f"{mount.dir}/source.tar"
    subprocess.run(["git", "-C", TOP, "archive", "-o", archive, "HEAD"], check=True)
    words = [*python("build.py"), archive, f"{mount.point}/source", *args.packages.split()]
    yield Program(mount, "build", words, finite=True)


LOADS = {f.__name__: f for f in (databases, ledgers, clients, fsx, postgres, build)}


def available(load, cell, args):
    """Whether it can run there."""
    if load == "postgres":
        return not cell.user and any(os.path.exists(p) for p in postgres_programs())
    if load == "build":
        return not cell.user and shutil.which("cargo") is not None
    return True


def postgres_programs():
    versions = "/usr/lib/postgresql"
    names = os.listdir(versions) if os.path.isdir(versions) else []
    return [f"{versions}/{name}/bin/initdb" for name in names]
