"""A simulated disk with a loop device on it."""

import os
import signal
import subprocess
import time

from daemon import PATIENCE, Finding, run, said


class Disk:
    def __init__(self, program, home, image, options):
        self.program, self.home, self.image, self.options = program, home, image, options
        self.mnt = f"{home}/disk"
        os.makedirs(self.mnt, exist_ok=True)
        self.process, self.loop = None, None

    def up(self, seed):
        """Switches it on. `seed`: what its next cut keeps."""
        command = [self.program, self.image, self.mnt, "--seed", str(seed), *self.options]
        with open(f"{self.home}/disk.err", "ab") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True, start_new_session=True
            )
        self.says("ready")
        made = run("losetup", "-f", "--show", "--direct-io=on", f"{self.mnt}/disk")
        if made.returncode:
            raise Finding(f"losetup: {said(made)}")
        self.loop = made.stdout.strip()
        if run("losetup", "-nlO", "DIO", self.loop).stdout.strip() != "1":
            raise Finding(f"no direct I/O on {self.loop}: what the page cache holds would survive")

    def says(self, word):
        line = self.process.stdout.readline()
        if not line.startswith(word):
            raise Finding(f"the simulated disk said {line!r} instead of {word!r}")
        return line.split()

    def cut(self):
        """Cuts the power: how many of the sectors that were not flushed are kept, and how many there were."""
        self.process.send_signal(signal.SIGUSR1)
        words = self.says("cut:")
        return int(words[1]), int(words[3])

    def down(self):
        """Ends it, after its loop device was closed."""
        begin = time.monotonic()
        while self.loop is not None:
            # What has a device open without saying so, like `udevd`, closes it soon.
            run("losetup", "-d", self.loop)
            if not os.path.exists(f"/sys/block/{os.path.basename(self.loop)}/loop"):
                self.loop = None
            elif time.monotonic() - begin > PATIENCE:
                raise Finding(f"{self.loop} stays in use")
            else:
                time.sleep(0.01)
        if self.process is not None:
            self.process.terminate()
            code = self.process.wait(PATIENCE)
            self.process.stdout.close()
            self.process = None
            if code:
                raise Finding(f"the simulated disk ended with {code}")

    def destroy(self):
        """Ends it, whatever state it is in."""
        if self.loop is not None:
            run("losetup", "-d", self.loop)
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        run("umount", "-lq", self.mnt)
