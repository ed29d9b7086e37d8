"""pjdfstest: what POSIX and Linux say of each call, error by error."""

import itertools
import os
import re
import tempfile

from machine import Failure, run
from volume import Volume

# Nothing else may be skipped. This one gives a file as many links as `pathconf(_PC_LINK_MAX)` says
# and one more; that is answered by the C library, which does not know the limit of a FUSE mount.
SKIPPED = {"link_count_max"}
TESTS = 398
LINE = re.compile(r"^(\S+)\s+(ok|FAILED|skipped|PASSED UNEXPECTEDLY|failed as expected)$")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

CONFIGURATION = """
[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utime_now = {{}}
utimensat = {{}}

[settings]
# Longer than a tick of the kernel's clock, which time stamps are taken from.
naptime = 0.02
allow_remount = {remount}
expected_failures = []

[dummy_auth]
entries = [{users}]
"""


def one_pass(options, volume, users, remount, patterns=()):
    """Results by name, and the whole output."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as f:
        names = ", ".join(f'["{user}", "{group}"]' for user, group in users)
        f.write(CONFIGURATION.format(remount=str(remount).lower(), users=names))
        f.flush()
        done = run(
            f"{options.tools}/bin/pjdfstest", "-c", f.name, "-p", volume.mnt, "-s", options.fast, *patterns, cwd=volume.mnt
        )
    text = COLOURS.sub("", done.stdout)
    results = {m[1]: m[2] for m in map(LINE.match, text.splitlines()) if m}
    if not results or "Summary:" not in text:
        raise Failure(f"pjdfstest ends with {done.returncode}: {(text + done.stderr)[-2000:]}")
    return results, text


def details(text):
    """What is said below the first test that failed."""
    lines = iter(text.splitlines())
    for line in lines:
        if (m := LINE.match(line)) and m[2] not in ("ok", "skipped"):
            return list(itertools.takewhile(lambda below: not LINE.match(below) and below, lines))[:20]
    return []


def judge(results, text):
    """How many passed and were skipped; anything but what is expected is a `Failure`."""
    by = {r: sorted(n for n in results if results[n] == r) for r in set(results.values())}
    passed, skipped = by.pop("ok", []), by.pop("skipped", [])
    wrong = [f"{name}: {result}" for result, names in by.items() for name in names]
    short = {name.rsplit("::", 1)[-1]: name for name in skipped}
    wrong += [f"{name}: skipped" for last, name in short.items() if last not in SKIPPED]
    wrong += [f"{name}: not skipped any more" for name in SKIPPED - short.keys()]
    if len(results) != TESTS:
        wrong.append(f"{len(results)} tests instead of {TESTS}")
    if wrong:
        raise Failure("\n  ".join([*wrong, *details(text)]))
    return len(passed), len(skipped)


def cell(options, users, subtype, cell):
    """Both passes on one volume. Read-only remounts have a pass of their own: other tests leave files
    open for writing, and while there are any a file system cannot become read-only."""
    with Volume(options, cell, "64M", "256M", f",subtype={subtype}") as volume:
        results, text = one_pass(options, volume, users, remount=False)
        readonly, more = one_pass(options, volume, users, remount=True, patterns=["erofs"])
        if left := os.listdir(volume.mnt):
            raise Failure(f"left behind: {left}")
        passed, skipped = judge(results | readonly, text + more)
    return f"{passed} passed, {skipped} skipped"
