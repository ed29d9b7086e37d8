"""The life of a volume on a simulated disk: made, used by one program, its power cut again and again."""

import os
import random
import subprocess
import time
from dataclasses import dataclass

from daemon import PATIENCE, Finding, Volume
from disk import Disk
from life import Life


@dataclass
class OneDevice(Volume):
    """A volume of one device, which has another name each time that it is switched on."""

    program: str = ""
    rng: random.Random | None = None

    def __post_init__(self):
        super().__post_init__()
        image = f"{self.fast}/image"
        with open(image, "wb") as f:
            f.truncate(int(self.shape.data.removesuffix("M")) << 20)
        options = ["--flush-takes", self.rng.choice(["0", "2", "5", "20"]), "--requests", self.rng.choice(["0", "0", "3000"])]
        self.disk = Disk(self.program, self.home, image, options)

    def power_on(self):
        self.disk.up(self.rng.randrange(1 << 32))
        self.vol = self.disk.loop

    def mkfs_command(self, force):
        return [self.quayfs, "mkfs", self.vol, "--pmem-size", self.shape.pmem, "--force"]

    def keep(self):
        """A copy of the image as the cut left it, to look into a failure."""
        subprocess.run(["cp", "--sparse=always", self.disk.image, f"{self.fast}/at-cut"], check=True)


class Cuts(Life):
    MOMENTS = ["running", "checkpoint", "unmount", "recovery"]
    # As for `kills`; `pending`: sectors that no flush had covered, `kept`: those of them that the cuts kept.
    COLUMNS = ["rounds", "rings", *MOMENTS, "pending", "kept", "undone", "acknowledged", "lost", "fsck"]

    def new_volume(self, options, fast, shape):
        self.pending, self.kept = 0, 0
        return OneDevice(options.quayfs, self.home, fast, shape, program=options.disk, rng=self.rng)

    def counts(self):
        return {**super().counts(), "pending": self.pending, "kept": self.kept}

    def live(self, rounds):
        v = self.volume
        v.power_on()
        if v.mkfs().returncode:
            raise Finding("mkfs failed")
        while self.rounds < rounds:
            self.one_round()
        self.clean_end()
        v.disk.down()

    def one_round(self):
        """Mount, check, work, cut, check."""
        v = self.volume
        moment = self.rng.choices(["running", "checkpoint", "unmount"], [5, 3, 2])[0]
        v.mount()
        self.check()
        before = self.noted()
        self.start_writers(churn=moment == "checkpoint")
        if self.rng.random() < 0.8:
            self.await_note(before)
        time.sleep(self.rng.uniform(0.05, 0.9))
        self.watch_writers()
        umount = None
        if moment == "checkpoint":
            moment = self.await_round()
            self.watch_writers()
        if moment == "unmount":
            self.kill_writers()
            delay = self.rng.random() * 1.2 * v.took["unmount"]
            umount = subprocess.Popen([v.quayfs, "umount", v.mnt], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(delay)
            v.took["unmount"] = delay if umount.poll() is not None else v.took["unmount"] * 1.5
        else:
            v.complaints()
        self.cut(moment)
        if umount is not None:
            umount.wait(PATIENCE)
        self.rounds += 1
        self.bury_writers()
        self.after_cut()
        if self.rng.random() < 0.4:
            for _ in range(self.rng.randint(1, 3)):
                v.start()
                time.sleep(self.rng.random() * 1.1 * v.took["mount"])
                self.cut("recovery")
                self.after_cut()

    def noted(self):
        """Bytes in the ledgers."""
        return sum(f.stat().st_size for f in os.scandir(self.ledgers))

    def await_note(self, before):
        """Waits until the program has come to do something."""
        begin = time.monotonic()
        while self.noted() == before:
            self.watch_writers()
            if time.monotonic() - begin > PATIENCE:
                raise Finding("the program does nothing")
            time.sleep(0.01)

    def cut(self, moment):
        """Cuts the power, lets the daemon meet that for a moment, and takes it away."""
        v = self.volume
        kept, pending = v.disk.cut()
        self.kept, self.pending = self.kept + kept, self.pending + pending
        self.killed[moment] += 1
        time.sleep(self.rng.random() * 0.05)
        v.kill(failed=True)

    def after_cut(self):
        """Off and on again, so that nothing of it is in the kernel's memory; the volume is whole as it is."""
        v = self.volume
        v.complaints(failed=True)
        v.disk.down()
        v.keep()
        v.power_on()
        v.fsck()

    def stop(self):
        super().stop()
        self.volume.disk.destroy()
