"""One volume, its daemon, and the ways to end that."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field


class Finding(Exception):
    """What should not be."""


# However slow the machine: nothing here takes so long unless it hangs.
PATIENCE = 120


def run(*command, timeout=PATIENCE, **more):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **more)
    except subprocess.TimeoutExpired as e:
        raise Finding(f"{command[0]} {command[1]} hangs") from e


def said(result):
    return f"exit code {result.returncode}: {(result.stdout + result.stderr).strip()}"


def rings_allowed():
    """Whether the kernel lets FUSE go over io_uring: `scripts/rings` switches it on."""
    try:
        with open("/sys/module/fuse/parameters/enable_uring", encoding="ascii") as f:
            return f.read().strip() == "Y"
    except OSError:
        return False


@dataclass
class Shape:
    """What a volume is made of and how it is mounted."""

    medium: str
    options: str
    rings: bool
    sync: bool
    pmem: str
    data: str
    inside: bool
    sparse: bool

    @staticmethod
    def draw(rng: random.Random, app):
        medium = rng.choice(["memory", "disk"])
        mode = rng.choices(["durability=op", "durability=commit", "data=ordered"], [6, 2, 2])[0]
        options = [mode, f"checkpoint={rng.choice(['adaptive', 'adaptive', 'swap', 'inplace'])}"]
        options.append(f"threads={rng.choice([1, 2, 4])}")
        if rng.random() < 0.3:
            options.append("open=elide")
        sync = mode != "durability=op"
        if app == "sqlite" and rng.random() < 0.2:
            # SQLite syncs what it needs; the others rely on the daemon having seen each write.
            options.append("writeback")
        rest = dict(
            pmem=rng.choice(["16M", "20M", "32M"]),
            data=rng.choice(["96M", "160M"]),
            inside=rng.random() < 0.5,
            sparse=rng.random() < 0.5,
        )
        rings = rng.random() < 0.5 and rings_allowed()
        options.append(f"transport={'uring' if rings else 'dev'}")
        if medium == "disk" and rng.random() < 0.5:
            # Half of that is for the region.
            options.append("memory=32M")
            rest["pmem"] = "48M"
        return Shape(
            medium=medium,
            options=",".join(options),
            rings=rings,
            sync=sync,
            **rest,
        )


@dataclass
class Volume:
    quayfs: str
    home: str
    fast: str
    shape: Shape
    daemon: subprocess.Popen | None = None
    undone: int = 0
    took: dict = field(default_factory=lambda: {"mkfs": 0.03, "mount": 0.03, "unmount": 0.05})

    def __post_init__(self):
        self.vol, self.mnt = f"{self.home}/vol", f"{self.home}/mnt"
        memory = self.shape.medium == "memory"
        self.base = self.fast if memory else self.home
        self.region = f"{self.vol}/pmem" if self.shape.inside and not memory else f"{self.base}/region"
        self.log, self.logged = f"{self.home}/quayfs.log", 0
        os.makedirs(self.mnt, exist_ok=True)
        os.makedirs(self.fast, exist_ok=True)

    # Making one.

    def mkfs_command(self, force):
        s = self.shape
        command = [self.quayfs, "mkfs", self.vol, "--pmem-size", s.pmem, "--data-size", s.data]
        if not self.region.startswith(self.vol):
            command += ["--pmem", self.region]
        return command + ["--sparse"] * s.sparse + ["--force"] * force

    def remove(self):
        shutil.rmtree(self.vol, ignore_errors=True)
        if os.path.exists(self.region):
            os.unlink(self.region)

    def mkfs(self, force=False):
        begin = time.monotonic()
        made = run(*self.mkfs_command(force))
        self.took["mkfs"] = time.monotonic() - begin
        return made

    def mkfs_killed(self, force, rng):
        """Starts mkfs and kills it; whether it was still at work."""
        child = subprocess.Popen(self.mkfs_command(force), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * self.took["mkfs"])
        child.kill()
        return child.wait(PATIENCE) == -signal.SIGKILL

    # Its daemon.

    def start(self, options=None):
        with open(self.log, "ab") as log:
            self.logged = log.tell()
            self.daemon = subprocess.Popen(
                [self.quayfs, "mount", self.vol, self.mnt, "--foreground", "-o", options or self.shape.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def await_mount(self):
        """Waits until the daemon says that it answers."""
        begin = time.monotonic()
        while True:
            with open(self.log, "rb") as f:
                f.seek(self.logged)
                if b"(ready after " in f.read():
                    self.took["mount"] = time.monotonic() - begin
                    return
            if self.daemon.poll() is not None:
                raise Finding(f"mounting failed, {self.daemon.returncode}: {self.tail()}")
            if time.monotonic() - begin > PATIENCE:
                raise Finding("mounting hangs")
            time.sleep(0.002)

    def mount(self, options=None):
        self.start(options)
        self.await_mount()

    def kill(self, failed=False):
        """Kills the daemon and takes the mount away; whether it was still alive. `failed`: its device has failed, so
        that it may have ended with an error."""
        self.daemon.kill()
        code = self.daemon.wait(PATIENCE)
        self.detach()
        if code not in (0, -signal.SIGKILL) and not (failed and code > 0):
            raise Finding(f"the daemon had ended by itself, {code}: {self.tail()}")
        return code == -signal.SIGKILL

    def alive(self):
        return self.daemon is not None and self.daemon.poll() is None

    def detach(self):
        while self.mounted():
            command = ["umount", "-l", self.mnt] if os.getuid() == 0 else ["fusermount3", "-uz", self.mnt]
            if run(*command).returncode:
                time.sleep(0.01)

    def mounted(self):
        with open("/proc/self/mountinfo") as f:
            return any(line.split()[4] == self.mnt for line in f)

    def unmount(self):
        begin = time.monotonic()
        done = run(self.quayfs, "umount", self.mnt)
        if done.returncode:
            raise Finding(f"umount: {said(done)}")
        if self.daemon.wait(PATIENCE):
            raise Finding(f"the daemon ended with {self.daemon.returncode} after unmounting: {self.tail()}")
        self.took["unmount"] = time.monotonic() - begin

    def rounds_thread_works(self):
        """Whether the thread that runs checkpoint rounds does something at this moment."""
        tasks = f"/proc/{self.daemon.pid}/task"
        for tid in os.listdir(tasks):
            with open(f"{tasks}/{tid}/stat") as f:
                name, rest = f.read().rsplit(") ", 1)
            if name.endswith("quayfs-round"):
                return rest[0] in "RD"
        return False

    # Its state.

    def fsck(self, *arguments):
        checked = run(self.quayfs, "fsck", self.vol, *arguments)
        if checked.returncode:
            raise Finding(f"fsck: {said(checked)}")

    def keep(self):
        """A copy of both media as the death left them, to look into a failure."""
        for name, path in [("region", self.region), ("data", f"{self.vol}/data")]:
            run("cp", "--sparse=always", path, f"{self.fast}/at-death-{name}")

    def complaints(self, failed=False):
        """Looks for lines in the log that no life should leave there, and for rounds undone; forgets
        the log. `failed`: of its device, which has failed, it may complain."""
        with open(self.log, "r+", errors="replace") as f:
            text = f.read()
            f.truncate(0)
        self.undone += sum(1 for n in re.findall(r"(\d+) page-table entries undone", text) if n != "0")
        # A reply to a process that was killed meanwhile is no complaint.
        bad = [x for x in text.splitlines() if ("ERROR" in x and not failed or "panicked" in x) and "send FUSE reply" not in x]
        if bad:
            raise Finding(f"the daemon's log says: {bad[0]}")

    def tail(self):
        with open(self.log, errors="replace") as f:
            return f.read().strip()[-500:]
