"""A volume of its own for each run of a suite."""

import contextlib
import json
import os
import shutil
import tempfile

from machine import Failure, must, run


class Volume:
    """Made and mounted on `mnt`, for as long as the `with` lasts. Its end is a part of the test: a
    clean unmount, then `fsck --data`. What failed is kept.

    `more` are mount options besides those of the cell.
    """

    def __init__(self, options, cell, pmem, data, more=""):
        self.quayfs, self.cell = options.quayfs, cell
        self.sizes = ["--pmem-size", pmem, "--data-size", data]
        self.more = more
        self.home = tempfile.mkdtemp(prefix="quayfs-conformance-", dir=options.work)
        self.vol, self.mnt = f"{self.home}/vol", f"{self.home}/mnt"
        os.mkdir(self.mnt)
        # The suites become other users, who have to get through to the mount point.
        os.chmod(self.home, 0o755)
        base = options.fast if cell.backend == "volatile" else self.home
        self.region = f"{base}/{os.path.basename(self.home)}.region"

    def __enter__(self):
        with self.kept():
            must(self.quayfs, "mkfs", self.vol, "--pmem", self.region, *self.sizes, "--sparse")
            must(self.quayfs, "mount", self.vol, self.mnt, "-o", f"allow_other,{self.cell.options()}{self.more}")
            if wrong := self.cell.differs_from(self.info()):
                raise Failure(f"mounted otherwise than asked for: {', '.join(wrong)}")
        return self

    def __exit__(self, kind, error, _):
        with self.kept():
            if error is not None:
                raise error
            must(self.quayfs, "umount", self.mnt)
            must(self.quayfs, "fsck", "--data", self.vol)
        os.unlink(self.region)
        shutil.rmtree(self.home)

    @contextlib.contextmanager
    def kept(self):
        """Whatever goes wrong, nothing stays mounted; a failure says what is left to look at."""
        try:
            yield
        except BaseException as e:
            if os.path.ismount(self.mnt) and run(self.quayfs, "umount", self.mnt).returncode:
                run("umount", "-i", "-l", self.mnt)
            if not isinstance(e, Failure):
                raise
            done = run(self.quayfs, "fsck", "--data", self.vol)
            state = f"fsck ends with {done.returncode}: {(done.stdout + done.stderr).strip()}"
            raise Failure(f"{e}\n  {state}\n  kept: {self.home} {self.region}") from e

    def info(self):
        return json.loads(must(self.quayfs, "info", self.mnt, "--json"))
