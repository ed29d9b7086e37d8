"""One volume, mounted once, and its daemons, which die or are replaced."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

# Where the region lies, and what `mkfs` is told.
MEDIA = {
    "file": lambda d, shm, size: [f"{d}/volume", "--pmem-size", size, "--data-size", "8G", "--sparse"],
    "volatile": lambda d, shm, size: [
        f"{d}/volume", "--pmem", f"{shm}/region", "--pmem-size", size, "--data-size", "8G", "--sparse"
    ],
}  # fmt: skip
# However slow the machine: nothing here takes so long unless it hangs.
PATIENCE = 300
# A process that asks the mount something when it is told to, and says when it was answered.
ASKER = "import os, sys, time\nfor _ in sys.stdin:\n    os.statvfs(sys.argv[1])\n    print(time.monotonic(), flush=True)\n"
NOBODY = 65534
# That of the system: others may lie where not every user gets.
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
# A mount namespace in which every user may open the device, as on most systems.
NAMESPACE = """
mount -t tmpfs none "$1" && mknod -m 666 "$1/fuse" c 10 229 && mount --bind "$1/fuse" /dev/fuse && echo ready && exec cat
"""


class Finding(Exception):
    """What should not be."""


@dataclass(frozen=True)
class Cell:
    """A way to mount."""

    name: str
    medium: str
    options: str
    size: str = "128M"
    # Mounted by a user who is not root, by `fusermount3`.
    user: bool = False


class Mount:
    def __init__(self, quayfs, place, cell):
        self.cell = cell
        self.quayfs = quayfs
        self.dir = tempfile.mkdtemp(prefix="quayfs-outlive-", dir=place)
        self.shm = tempfile.mkdtemp(prefix="quayfs-outlive-", dir="/dev/shm")
        self.point = os.path.join(self.dir, "mnt")
        self.volume = os.path.join(self.dir, "volume")
        self.become, self.namespace = [], None
        self.supervisor = self.asker = None
        os.mkdir(self.point)
        os.chmod(self.dir, 0o755)
        if cell.user:
            # A program that is not below a home.
            self.quayfs = shutil.copy(quayfs, f"{self.dir}/quayfs")
            for path in (self.dir, self.shm, self.point):
                os.chown(path, NOBODY, NOBODY)
            self.become = self.as_nobody()

    def as_nobody(self):
        """How to become a user with no rights, who has no home."""
        user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        user += ["env", "-C", self.dir, "HOME=/nonexistent"]
        if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
            return user
        os.mkdir(f"{self.dir}/dev")
        words = ["unshare", "--mount", "sh", "-c", NAMESPACE, "sh", f"{self.dir}/dev"]
        self.namespace = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.namespace.stdout.readline() != "ready\n":
            raise Finding("no mount namespace")
        return ["nsenter", f"--mount=/proc/{self.namespace.pid}/ns/mnt", *user]

    def begin(self):
        """Makes the volume and mounts it."""
        self.run("mkfs", *MEDIA[self.cell.medium](self.dir, self.shm, self.cell.size))
        self.run("mount", "-o", self.cell.options, self.volume, self.point)
        self.supervisor = self.find_supervisor()
        words = [*self.become, PYTHON, "-c", ASKER, self.point]
        self.asker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *words):
        done = subprocess.run([*self.become, self.quayfs, *words], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise Finding(f"quayfs {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def find_supervisor(self):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            if words[0] == b"quayfs-supervisor" and self.point.encode() in words:
                return int(pid)
        raise Finding(f"no supervisor of {self.point}")

    def children(self):
        """The daemon, and what changes the volume for it."""
        try:
            with open(f"/proc/{self.supervisor}/task/{self.supervisor}/children") as f:
                return [int(pid) for pid in f.read().split()]
        except FileNotFoundError:
            return []

    def daemon(self):
        return next(iter(self.children()), None)

    def kill(self, among):
        """When the daemon died; `None` if there was none. `among` picks one of several processes."""
        children = self.children()
        pid = among(children) if children else None
        if pid is None:
            return None
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        try:
            if select.select([handle], [], [], 0)[0]:
                # It has been killed already, and the supervisor does not know yet.
                return None
            at = time.monotonic()
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            # Whatever is asked from here on the next daemon has to answer.
            select.select([handle], [], [], PATIENCE)
            return at
        except ProcessLookupError:
            return None
        finally:
            os.close(handle)

    def replace(self, program):
        old = self.daemon()
        said = self.run("restart", self.point, "--binary", program)
        if self.daemon() == old or os.readlink(f"/proc/{self.daemon()}/exe") != program:
            raise Finding(f"{program} does not serve {self.point}: {said}")
        return int(said.split(" ms")[0].split()[-1]) / 1000

    def answered(self):
        """Asks something, and says when it was answered."""
        self.asker.stdin.write("\n")
        self.asker.stdin.flush()
        if not select.select([self.asker.stdout], [], [], PATIENCE)[0]:
            raise Finding("the mount does not answer")
        return float(self.asker.stdout.readline() or self.gone())

    def gone(self):
        raise Finding("statvfs of the mount fails")

    def memory(self):
        """Of the supervisor, in KiB: shared pages in parts, and as a whole."""
        with open(f"/proc/{self.supervisor}/smaps_rollup") as f:
            found = dict(re.findall(r"^(\w+): +(\d+) kB", f.read(), re.M))
        return int(found["Pss"]), int(found["Rss"])

    def end(self, ends, changed=False):
        """Unmounts and checks. `ends`: of daemons, which all were asked for; where a volume was `changed`, other processes may
        have been killed instead, and changes that come to nothing are errors in the log."""
        self.asker.stdin.close()
        self.asker.wait(PATIENCE)
        info = json.loads(self.run("info", "--json", self.point))
        known = info["restarts"]
        self.run("umount", self.point)
        deadline = time.monotonic() + 20
        while os.path.exists(f"/proc/{self.supervisor}"):
            if time.monotonic() > deadline:
                raise Finding(f"the supervisor {self.supervisor} is still there after the unmount")
            time.sleep(0.05)
        self.run("fsck", self.volume, "--data")
        if changed:
            # That a daemon ended on request.
            known -= info["replaced"]
        if known > ends or known < ends and not changed:
            raise Finding(f"{known} daemons have ended, {ends} of them on purpose")
        with open(f"{self.volume}/quayfs.log", errors="replace") as f:
            # A reply to a process that was killed meanwhile is no complaint.
            bad = [line for line in f if ("panicked" in line or "ERROR" in line) and "send FUSE reply" not in line]
        if bad:
            raise Finding(f"the log says: {bad[0]}")

    def give_up(self):
        """Takes the mount away after a finding; the volume stays."""
        if self.asker:
            self.asker.kill()
        if self.supervisor and os.path.exists(f"/proc/{self.supervisor}"):
            words = ["umount", "-l", self.point] if not self.become else ["fusermount3", "-uz", self.point]
            subprocess.run([*self.become, *words], check=False)
        self.leave_namespace()

    def leave_namespace(self):
        if self.namespace:
            self.namespace.stdin.close()
            self.namespace.wait(PATIENCE)

    def remove(self):
        self.leave_namespace()
        shutil.rmtree(self.dir)
        shutil.rmtree(self.shm)
