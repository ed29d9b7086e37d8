"""Public suites of tests on real mounts, in every way to mount: docs/conformance.md."""

import argparse
import contextlib
import os
import signal
import sys
import time
from dataclasses import replace

sys.dont_write_bytecode = True
import cells  # noqa: E402
import fsx  # noqa: E402
import machine  # noqa: E402
import pjdfstest  # noqa: E402
from machine import Failure  # noqa: E402

TOP = os.path.normpath(f"{os.path.dirname(os.path.abspath(__file__))}/../..")


def arguments():
    p = argparse.ArgumentParser(prog="conformance", description="Public suites of tests on real mounts.")
    p.add_argument("--quayfs", default=f"{TOP}/target/debug/quayfs")
    p.add_argument("--tools", default=f"{TOP}/target/conformance", help="where `make conformance` installs the suites")
    p.add_argument("--suites", default="pjdfstest,fsx", help="which of them, separated by commas")
    p.add_argument("--cells", choices=["pairs", "all"], default="pairs", help="mount options of pjdfstest: every pair (6), or all (32)")
    p.add_argument("--seed", type=int, default=1, help="first seed of fsx (1)")
    p.add_argument("--seeds", type=int, default=1, help="how many (1)")
    p.add_argument("--ops", type=int, default=100_000, help="operations of fsx for each seed and variant (100000)")
    p.add_argument("--work", default="/var/tmp", help="where volumes on disk are")
    p.add_argument("--fast", default="/dev/shm", help="where regions in memory are")
    options = p.parse_args()
    options.quayfs, options.tools = os.path.abspath(options.quayfs), os.path.abspath(options.tools)
    if unknown := set(options.suites.split(",")) - {"pjdfstest", "fsx"}:
        p.error(f"no suite {', '.join(unknown)}")
    return options


def jobs(options, with_rings, users, subtype):
    """Names, and what to call for each."""
    chosen = cells.every() if options.cells == "all" else cells.pairs()
    variants = fsx.VARIANTS
    if not with_rings:
        chosen = cells.without_rings(chosen)
        variants = [replace(v, cell=replace(v.cell, transport="dev")) for v in variants]
    suites = options.suites.split(",")
    if "pjdfstest" in suites:
        for cell in chosen:
            yield f"pjdfstest {cell}", lambda c=cell: pjdfstest.cell(options, users, subtype, c)
    if "fsx" in suites:
        for seed in range(options.seed, options.seed + options.seeds):
            for variant in variants:
                what = f"fsx seed {seed} {variant.name} {variant.cell}{variant.more}"
                yield what, lambda v=variant, s=seed: fsx.variant(options, v, s)


def main():
    options = arguments()
    for name in ("QUAYFS_SKIP_FUSE", "QUAYFS_SKIP_ROOT"):
        if machine.skipped(name):
            print(f"no conformance suites: {name}=1")
            return 0
    if os.geteuid() != 0:
        sys.exit("the suites become other users and make devices: run this as root, or set QUAYFS_SKIP_ROOT=1")
    with_rings = not machine.skipped("QUAYFS_SKIP_URING")
    if not with_rings:
        print("nothing over io_uring: QUAYFS_SKIP_URING=1")
    # What was changed is changed back, and nothing stays mounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    begin, failed = time.monotonic(), []
    with machine.rings() if with_rings else contextlib.nullcontext(), machine.helper(options.quayfs) as subtype:
        for name, job in jobs(options, with_rings, machine.users(), subtype):
            start = time.monotonic()
            try:
                print(f"{name}: {job()}, fsck clean, {time.monotonic() - start:.1f} s", flush=True)
            except Failure as e:
                failed.append(name)
                print(f"FAILED {name}: {e}", flush=True)
    print(f"{len(failed)} failed, {time.monotonic() - begin:.0f} s", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
