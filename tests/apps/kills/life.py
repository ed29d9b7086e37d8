"""The life of one volume: made, used by one program, killed again and again."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from daemon import PATIENCE, Finding, Shape, Volume, run, said

HERE = os.path.dirname(os.path.abspath(__file__))
APPS = ["fsx", "sqlite", "records", "git", "untar"]
ROUNDS = 8


class Life:
    """`number` decides everything but when exactly something happens."""

    MOMENTS = ["mkfs", "mount", "running", "checkpoint", "unmount", "recovery"]
    # Of a round each: over rings, kills by the moment, recoveries that undid half a checkpoint round, operations
    # acknowledged, volumes with something lost or otherwise wrong, volumes where fsck found something.
    COLUMNS = ["rounds", "rings", *MOMENTS, "undone", "acknowledged", "lost", "fsck"]

    def __init__(self, options, work, fast, app, number):
        self.rng = random.Random(f"{options.seed}/{app}/{number}")
        self.app, self.seed = app, f"{options.seed}/{number}"
        self.home, name = f"{work}/{app}-{number}", f"{app}-{number}"
        shape = Shape.draw(self.rng, app)
        self.volume = self.new_volume(options, f"{fast}/{name}", shape)
        self.ledgers, self.count = f"{self.home}/ledgers", 0
        self.environment = {**os.environ, "SYNC": str(int(shape.sync))}
        self.killed = dict.fromkeys(self.MOMENTS, 0)
        self.rounds, self.acknowledged = 0, 0
        self.writers = []

    def new_volume(self, options, fast, shape):
        return Volume(options.quayfs, self.home, fast, shape)

    def counts(self):
        """What it adds to the columns."""
        return {
            "rounds": self.rounds,
            "rings": self.rounds if self.volume.shape.rings else 0,
            "acknowledged": self.acknowledged,
            "undone": self.volume.undone,
            **self.killed,
        }

    def live(self, rounds):
        """`rounds` rounds, then a clean end. Raises what is found."""
        v = self.volume
        if v.mkfs().returncode:
            raise Finding("mkfs failed")
        if rounds > 1 and self.rng.random() < 0.6:
            # Over the volume just made, or over nothing.
            over = self.rng.random() < 0.5
            if not over:
                v.remove()
            self.mkfs_round(over)
        while self.rounds < rounds:
            self.one_round()
        self.clean_end()

    # Making a volume.

    def mkfs_round(self, force):
        v = self.volume
        hit = v.mkfs_killed(force, self.rng)
        self.count_kill("mkfs", hit)
        if hit and not self.refused_or_whole():
            # Asked for once more it works, or says what is in the way.
            again = v.mkfs()
            if again.returncode and (again.returncode != 1 or again.stderr.count("\n") != 1):
                raise Finding(f"mkfs after a killed one: {said(again)}")
            if again.returncode and v.mkfs(force=True).returncode:
                # A file cut short by the death of the process that allocated it has no size to choose.
                v.remove()
                if (made := v.mkfs()).returncode:
                    raise Finding(f"mkfs from scratch: {said(made)}")
        v.fsck()

    def refused_or_whole(self):
        """After the death of mkfs: whether there is a volume. What is none is refused in one line."""
        v = self.volume
        checked = run(v.quayfs, "fsck", v.vol)
        if checked.returncode == 4 and "copy" in checked.stdout + checked.stderr:
            # Dead between the two copies of the configuration table: whole but for the spare one.
            checked = run(v.quayfs, "fsck", "--repair", v.vol)
            if checked.returncode != 1:
                raise Finding(f"fsck --repair after a killed mkfs: {said(checked)}")
            return True
        if checked.returncode == 0:
            return True
        tried = run(v.quayfs, "mount", v.vol, v.mnt)
        if tried.returncode != 32 or tried.stderr.count("\n") != 1 or checked.returncode != 8:
            v.detach()
            raise Finding(f"half a volume, mount: {said(tried)}; fsck: {said(checked)}")
        return False

    # A round.

    def one_round(self):
        """Mount, check, work, die, check."""
        v = self.volume
        moment = self.rng.choices(["running", "checkpoint", "unmount", "mount"], [38, 27, 22, 13])[0]
        if moment == "mount":
            self.mount_round()
            return
        v.mount()
        self.check()
        self.start_writers(churn=moment == "checkpoint")
        time.sleep(self.rng.uniform(0.05, 0.9))
        self.watch_writers()
        if moment == "checkpoint":
            moment = self.await_round()
            self.watch_writers()
        if moment == "unmount":
            hit = self.kill_while_unmounting()
        else:
            hit = v.kill()
        self.count_kill(moment, hit)
        self.bury_writers()
        self.after_death()

    def mount_round(self):
        """Killed while a clean volume is mounted."""
        v = self.volume
        v.mount()
        self.check()
        v.unmount()
        v.start()
        time.sleep(self.rng.random() * 1.2 * v.took["mount"])
        self.count_kill("mount", v.kill())
        self.after_death()

    def await_round(self):
        """Waits until a checkpoint round is running, and for a moment in it."""
        until = time.monotonic() + 3
        while time.monotonic() < until and self.volume.alive():
            if self.volume.rounds_thread_works():
                time.sleep(self.rng.random() ** 3 * 0.02)
                return "checkpoint"
        return "running"

    def kill_while_unmounting(self):
        v = self.volume
        delay = self.rng.random() * 1.2 * v.took["unmount"]
        if self.rng.random() < 0.3:
            # With users: the second signal takes the tree away from them.
            v.daemon.terminate()
            time.sleep(0.02)
            v.daemon.terminate()
            time.sleep(delay)
            return v.kill()
        self.kill_writers()
        begin = time.monotonic()
        umount = subprocess.Popen([v.quayfs, "umount", v.mnt], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        hit = v.kill()
        if not hit:
            v.took["unmount"] = time.monotonic() - begin
        umount.wait(PATIENCE)
        return hit

    def after_death(self):
        """The volume is whole as it is, and after 0 to 3 deaths in the middle of recovery."""
        v = self.volume
        v.keep()
        v.complaints()
        v.fsck()
        if self.rng.random() < 0.4:
            for _ in range(self.rng.randint(1, 3)):
                v.start()
                time.sleep(self.rng.random() * 1.1 * v.took["mount"])
                if v.kill():
                    self.killed["recovery"] += 1
                if self.rng.random() < 0.5:
                    v.fsck()
            v.complaints()

    def clean_end(self):
        v = self.volume
        v.mount()
        self.check()
        v.unmount()
        v.fsck("--data")
        v.mount("ro")
        v.unmount()
        v.complaints()

    def count_kill(self, moment, hit):
        if hit:
            self.killed[moment] += 1
            self.rounds += 1

    # The program.

    def program(self, verb):
        return [sys.executable, f"{HERE}/{self.app}.py", verb, f"{self.volume.mnt}/tree", self.ledgers, self.seed]

    def start_writers(self, churn):
        commands = [self.program("write")]
        if churn:
            commands.append([sys.executable, f"{HERE}/churn.py", f"{self.volume.mnt}/churn/file"])
        with open(f"{self.home}/writer.err", "wb") as err:
            self.writers = [
                subprocess.Popen(c, env=self.environment, stdout=err, stderr=err, start_new_session=True) for c in commands
            ]

    def kill_writers(self):
        for w in self.writers:
            os.killpg(w.pid, signal.SIGKILL)
            w.wait(PATIENCE)

    def watch_writers(self):
        for w in self.writers:
            if w.poll() is not None:
                raise Finding(f"the program ended with {w.returncode} while its file system was alive: {self.writers_say()}")
        if not self.volume.alive():
            raise Finding(f"the daemon ended by itself: {self.volume.tail()}")

    def bury_writers(self):
        """A program ends when its file system does: with an error, or by the signal of a mapping."""
        for w in self.writers:
            code, until = None, time.monotonic() + PATIENCE
            while code is None:
                try:
                    code = w.wait(10)
                except subprocess.TimeoutExpired as e:
                    what = self.hangs(w.pid)
                    # It reads on for ever in a directory that answers with ENOTCONN: nothing of ours.
                    if self.app == "git" and "pack-objects" in what:
                        os.killpg(w.pid, signal.SIGKILL)
                    elif time.monotonic() > until:
                        os.killpg(w.pid, signal.SIGKILL)
                        raise Finding(f"the program hangs after the death of its file system: {what}") from e
            if code not in (10, -signal.SIGBUS, -signal.SIGKILL):
                raise Finding(f"the program ended with {code}: {self.writers_say()}")
        self.writers = []

    @staticmethod
    def hangs(session):
        """What each process of a program waits for."""
        out = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    state, _, _, its = f.read().rsplit(") ", 1)[1].split()[:4]
                if int(its) == session:
                    with open(f"/proc/{pid}/cmdline") as f, open(f"/proc/{pid}/wchan") as g:
                        out.append(f"{f.read().replace(chr(0), ' ')}: {state} {g.read()}")
            except OSError:
                pass
        return "; ".join(out)

    def writers_say(self):
        with open(f"{self.home}/writer.err", errors="replace") as f:
            return f.read().strip()[-600:]

    def check(self):
        # Directories that are on the volume only: a late process does not write below the mount.
        for name in ("tree", "churn"):
            os.makedirs(f"{self.volume.mnt}/{name}", exist_ok=True)
        checked = run(*self.program("check"), env=self.environment)
        if checked.returncode:
            raise Finding(f"check: {checked.stderr.strip() or checked.stdout}")
        self.acknowledged += json.loads(checked.stdout)["acknowledged"]

    # Its end.

    def clean_up(self, keep):
        self.stop()
        if not keep:
            shutil.rmtree(self.home, ignore_errors=True)
            shutil.rmtree(self.volume.fast, ignore_errors=True)

    def stop(self):
        """Ends all processes and mounts."""
        for w in self.writers:
            if w.poll() is None:
                os.killpg(w.pid, signal.SIGKILL)
                w.wait()
        v = self.volume
        if v.daemon and v.daemon.poll() is None:
            v.daemon.kill()
            v.daemon.wait()
        v.detach()
