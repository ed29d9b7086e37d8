"""A volume whose region is a file of this machine and whose data are on an engine, mounted, and what works on it."""

import json
import os
import signal
import subprocess
import sys
import time

from daemon import PATIENCE, Finding, run, said
from engine import until

HERE = os.path.dirname(os.path.abspath(__file__))
LEDGERS = os.path.normpath(f"{HERE}/../kills/records.py")
FAILED = 32


class Volume:
    def __init__(self, quayfs, home, engine):
        self.quayfs, self.home, self.engine = quayfs, home, engine
        self.vol, self.mnt, self.ledgers = f"{home}/vol", f"{home}/mnt", f"{home}/ledgers"
        self.writer = self.probes = None
        self.acknowledged = 0
        os.makedirs(self.mnt)

    def command(self, *words, fails=0):
        done = run(self.quayfs, *words, timeout=3 * PATIENCE)
        if done.returncode != fails:
            raise Finding(f"quayfs {' '.join(words)}: {said(done)}")
        return done.stdout + done.stderr

    def make(self):
        # On its file of the engine, and nothing that would be made there if it were missing.
        if not os.path.exists(self.engine.file):
            raise Finding(f"no {self.engine.file}")
        region = ["--pmem", f"{self.home}/region", "--pmem-size", "64M"]
        self.command("mkfs", self.vol, *region, "--data", self.engine.file)

    def mount(self):
        self.command("mount", self.vol, self.mnt)

    def status(self):
        """What `quayfs status` says of the mount, and `quayfs info`."""
        done = run(self.quayfs, "status", "--json", self.mnt)
        if not done.stdout:
            raise Finding(f"status: {said(done)}")
        return json.loads(done.stdout)["volumes"][0]

    def umount(self, *how, fails=0):
        begin = time.monotonic()
        told = self.command("umount", *how, self.mnt, fails=fails)
        return time.monotonic() - begin, told

    def fsck(self):
        """Every structure, and every block of the data device by its checksum."""
        self.command("fsck", "--data", self.vol)

    # Deaths.

    def kill_daemon(self):
        """Kills the daemon; another one goes on."""
        before = self.status()["daemon"]
        os.kill(before["pid"], signal.SIGKILL)
        until("the next daemon", lambda: (self.status().get("daemon") or before)["restarts"] > before["restarts"])

    def processes(self):
        """Supervisor and daemon."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
            except OSError:
                continue
            if words[0].startswith(b"quayfs") and self.mnt.encode() in words:
                # The supervisor first: it would start another one.
                found.insert(0 if words[0] == b"quayfs-supervisor" else len(found), int(pid))
        return found

    def kill_all(self):
        """The mount ends with both of its processes, as it does when the machine stops."""
        handles = [os.pidfd_open(pid) for pid in self.processes()]
        for handle in handles:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        for handle in handles:
            os.close(handle)
        until("the end of the daemon", lambda: not self.processes())
        while self.is_mounted():
            run("umount", "-l", self.mnt)

    def is_mounted(self):
        with open("/proc/self/mountinfo") as f:
            return any(line.split()[4] == self.mnt for line in f)

    # What works on it.

    def ledger(self, verb):
        command = [sys.executable, LEDGERS, verb, f"{self.mnt}/tree", self.ledgers, "1"]
        return command, {**os.environ, "SYNC": "1"}

    def check(self):
        """All that an `fsync` has acknowledged is there."""
        os.makedirs(f"{self.mnt}/tree", exist_ok=True)
        command, environment = self.ledger("check")
        checked = run(*command, env=environment)
        if checked.returncode:
            raise Finding(f"lost: {checked.stderr.strip() or checked.stdout}")
        self.acknowledged += json.loads(checked.stdout)["acknowledged"]

    def write(self):
        command, environment = self.ledger("write")
        with open(f"{self.home}/writer.err", "wb") as err:
            self.writer = subprocess.Popen(command, env=environment, stdout=err, stderr=err, start_new_session=True)

    def writes(self):
        if self.writer.poll() is not None:
            with open(f"{self.home}/writer.err") as f:
                raise Finding(f"the writer ended with {self.writer.returncode}: {f.read().strip()[-300:]}")

    def stop_writing(self, fails=False):
        """`fails`: it has met an error and ended; otherwise it has met none."""
        if fails:
            if self.writer.wait(PATIENCE) != 10:
                raise Finding(f"the writer ended with {self.writer.returncode}")
        else:
            self.writes()
            os.killpg(self.writer.pid, signal.SIGKILL)
            self.writer.wait(PATIENCE)
        self.writer = None

    def cold(self):
        """A file that only the data device has, and not the region."""
        with open(f"{self.mnt}/cold", "wb") as f:
            f.write(os.urandom(10 << 20))
            os.fsync(f.fileno())

    def probe(self, *kinds):
        self.end = f"{self.home}/end"
        for name in (self.end, f"{self.end}.held"):
            if os.path.exists(name):
                os.unlink(name)
        command = [sys.executable, f"{HERE}/probes.py", self.mnt, self.end, *kinds]
        self.probes = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def held(self):
        """From here on the engine does not work."""
        with open(f"{self.end}.held", "w"):
            pass

    def probed(self):
        """What the probes say, by their kind."""
        if os.path.exists(f"{self.end}.held"):
            os.unlink(f"{self.end}.held")
        with open(self.end, "w"):
            pass
        out, _ = self.probes.communicate(timeout=PATIENCE)
        if self.probes.returncode:
            raise Finding("a probe has failed")
        self.probes = None
        return {p["kind"]: p for p in map(json.loads, out.splitlines())}

    def stop(self):
        """Ends all of it, after the engine goes on."""
        for process in (self.writer, self.probes):
            if process and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        if self.is_mounted() or self.processes():
            self.kill_all()
        for process in (self.writer, self.probes):
            if process:
                process.wait(PATIENCE)
