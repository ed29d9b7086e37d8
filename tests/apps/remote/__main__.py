"""Volumes whose data are on Ceph and NBD, and what these can do to them: `python3 tests/apps/remote --help`."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
# What it has in common with `kills` is there.
sys.path[:0] = [HERE, os.path.normpath(f"{HERE}/../kills")]
import cases  # noqa: E402
from ceph import Ceph  # noqa: E402
from engine import Plain  # noqa: E402
from nbd import Nbd, NbdOnLittle  # noqa: E402
from run import TOP, commit, program  # noqa: E402
from volume import Volume  # noqa: E402

FAULTS = ["deaths", "stall", "death_while_stalled", "unmount_while_stalled", "restart"]
PLAN = [
    (Plain, ["rates"]),
    (Nbd, ["rates", *FAULTS]),
    (NbdOnLittle, ["full"]),
    (Ceph, ["rates", *FAULTS, "lost_client", "full", "fenced", "two_clients"]),
]


def arguments():
    p = argparse.ArgumentParser(prog="remote", description="Runs volumes whose data are on Ceph and NBD.")
    p.add_argument("--quayfs", default=os.environ.get("QUAYFS", f"{TOP}/target/release/quayfs"))
    p.add_argument("--work", default="/var/tmp", help="where the engines and the regions are")
    p.add_argument("--stall", type=int, default=60, help="seconds for which a server is stopped (60)")
    p.add_argument("--size", type=int, default=200, help="MiB that fio writes (200)")
    p.add_argument("--cases", default="", help="only these, separated by commas")
    p.add_argument("--engines", default="", help="only these: plain file, nbd, ceph")
    return p.parse_args()


def one(options, engine, name):
    """One case, on a volume of its own; its result, or what was found."""
    home = f"{engine.home}/{name}"
    os.makedirs(home)
    v = Volume(options.quayfs, home, engine)
    try:
        v.make()
        return getattr(cases, name)(v, options)
    finally:
        # What waits for the server goes on before anything is taken away.
        engine.go_on()
        v.stop()


def again(engine):
    """Empty again for the next volume."""
    with open(engine.file, "r+b") as f:
        f.write(bytes(1 << 20))
        os.fsync(f.fileno())


def engines(options, work):
    """All cases of all engines; findings, and results by engine and case."""
    found, results = [], {}
    for kind, names in PLAN:
        chosen = [n for n in names if not options.cases or n in options.cases.split(",")]
        if not chosen or (options.engines and kind.name.split(",")[0] not in options.engines.split(",")):
            continue
        engine = kind(os.path.join(work, kind.__name__.lower()))
        try:
            engine.up()
            for name in chosen:
                begin = time.monotonic()
                try:
                    again(engine)
                    result = one(options, engine, name)
                except Exception as e:
                    traceback.print_exc()
                    found.append(f"{kind.name}, {name}: {e}")
                    print(f"FAILED {found[-1]}", flush=True)
                    # What it has left would be found by the next ones.
                    break
                results.setdefault(kind.name, {})[name] = result
                took = time.monotonic() - begin
                print(f"{kind.name:16} {name:22} {took:5.0f} s  {json.dumps(result or {})}", flush=True)
        finally:
            engine.down()
            engine.remove()
    return found, results


def main():
    options = arguments()
    options.quayfs = program(options.quayfs)
    if os.getuid() != 0:
        sys.exit("remote: caches are dropped and file systems mounted, which takes root")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(130))
    work, at, begin = tempfile.mkdtemp(prefix="quayfs-remote-", dir=options.work), commit(), time.monotonic()
    found = []
    try:
        found, results = engines(options, work)
    finally:
        if not found:
            shutil.rmtree(work)
    print(json.dumps({"commit": at, "stall": options.stall, "seconds": round(time.monotonic() - begin), "results": results}))
    if found:
        print(f"{len(found)} findings; kept: {work}")
        sys.exit(1)


main()
