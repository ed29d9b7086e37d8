"""fsx: random operations on one file, every read held against a copy in memory."""

import os
import tempfile
from dataclasses import dataclass

from cells import Cell
from machine import Failure, loop, run
from volume import Volume

LENGTH = 1 << 20
# The smallest region there is: digest and rounds run all the time.
PMEM, DATA = "16M", "64M"

# Everything fsx can do.
WEIGHTS = {
    "close_open": 1,
    "invalidate": 1,
    "mapread": 10,
    "mapwrite": 10,
    "read": 10,
    "write": 10,
    "truncate": 10,
    "fsync": 1,
    "fdatasync": 1,
    "posix_fallocate": 5,
    "punch_hole": 5,
    "sendfile": 5,
    "posix_fadvise": 2,
    "copy_file_range": 5,
}
# A block device has no size to change and no `copy_file_range`.
ON_A_DEVICE = {"close_open": 0, "truncate": 0, "posix_fallocate": 0, "copy_file_range": 0}


@dataclass(frozen=True)
class Variant:
    """How fsx meets the file.

    `direct`: through a loop device that uses O_DIRECT, since fsx itself cannot; its other operations
    are those of a block device. `lazy`: stores through a mapping are not followed by `msync`.
    """

    name: str
    cell: Cell
    more: str = ""
    direct: bool = False
    lazy: bool = False

    def configuration(self):
        weights = WEIGHTS | (ON_A_DEVICE if self.direct else {})
        lines = [
            f"flen = {LENGTH}",
            f"nomsyncafterwrite = {str(self.lazy).lower()}",
            f"nosizechecks = {str(self.direct).lower()}",
            f"blockmode = {str(self.direct).lower()}",
            "[opsize]",
            f"min = {512 if self.direct else 1}",
            "max = 65536",
            f"align = {512 if self.direct else 1}",
            "[weights]",
            *(f"{name} = {weight}" for name, weight in weights.items()),
        ]
        return "\n".join(lines) + "\n"


VARIANTS = [
    Variant("buffered", Cell()),
    Variant("collected", Cell("uring", "writeback"), ",checkpoint=swap", lazy=True),
    Variant("commit", Cell("uring", "writethrough", "commit", "file", "elide"), ",commit=1"),
    Variant("ordered", Cell("dev", "writeback", "commit", "file"), ",data=ordered,commit=1"),
    Variant("data-writeback", Cell("uring", "writethrough", "commit", "volatile", "elide"), ",data=writeback"),
    Variant("direct", Cell("uring"), direct=True),
]


def exercise(options, volume, variant, seed, file):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as f:
        f.write(variant.configuration())
        f.flush()
        arguments = ["-f", f.name, "-S", str(seed), "-N", str(options.ops), "-q", "-P", volume.home, file]
        done = run(f"{options.tools}/bin/fsx", *arguments)
    if done.returncode or "A-OK" not in done.stdout:
        log = f"{volume.home}/fsx.log"
        with open(log, "w") as f:
            f.write(done.stdout + done.stderr)
        # It begins with what was read and what was expected, and ends with the last operations.
        lines = (done.stdout + done.stderr).splitlines()
        raise Failure("\n  ".join([f"fsx ends with {done.returncode}: {log}", *lines[:3], "...", *lines[3:][-8:]]))


def variant(options, variant, seed):
    with Volume(options, variant.cell, PMEM, DATA, variant.more) as volume:
        file = f"{volume.mnt}/file"
        if variant.direct:
            with open(file, "wb") as f:
                os.posix_fallocate(f.fileno(), 0, LENGTH)
            with loop(file) as device:
                exercise(options, volume, variant, seed, device)
        else:
            exercise(options, volume, variant, seed, file)
        done = volume.info()["counters"]
        # Without them the volume was too large for what was done to it.
        for what in ["digests", "blocks_direct" if "data=" in variant.more else "rounds"]:
            if not done[what]:
                raise Failure(f"{what}: 0, so that nothing of them was tested")
    return f"{options.ops} operations, {done['digests']} digests, {done['rounds']} rounds"
