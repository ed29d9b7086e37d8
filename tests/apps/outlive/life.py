"""One volume and the deaths of its daemons."""

import os
import random
import time
from dataclasses import dataclass, field, replace
from subprocess import SubprocessError

from changes import Changer
from mount import Cell, Finding, Mount
from programs import LOADS, available

# So many lives' deaths a program that comes to an end by itself may meet.
MOST = 4
# Deaths of daemons that may not have answered anything: five in a row would be given up.
IN_VAIN = 3


def ways():
    """Every way to mount that is tried."""
    cells = []
    for medium in ("volatile", "file"):
        for durability, more in [("op", ""), ("commit", ",commit=1")]:
            for pages in ("", ",writeback"):
                name = f"{medium} {durability} {pages[1:] or 'writethrough'}"
                cells.append(Cell(name, medium, f"durability={durability}{more}{pages}"))
    return [
        *cells,
        Cell("file ordered", "file", "data=ordered,commit=1"),
        Cell("volatile ordered writeback", "volatile", "data=ordered,writeback"),
        Cell("file memory=32M elide", "file", "memory=32M,commit=2,open=elide"),
        Cell("volatile atomic_writes", "volatile", "atomic_writes,commit=1"),
        Cell("volatile user", "volatile", "durability=op", user=True),
        Cell("file user writeback", "file", "durability=commit,commit=1,writeback", user=True),
    ]


@dataclass
class Counts:
    """Of some lives."""

    lives: int = 0
    kills: int = 0
    recovering: int = 0
    calls: int = 0
    pauses: list = field(default_factory=list)
    machine: list = field(default_factory=list)
    pss: int = 0
    rss: int = 0
    changes: dict = field(default_factory=dict)
    findings: list = field(default_factory=list)

    def add(self, other):
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if name == "changes":
                sum_of(mine, value)
            else:
                setattr(self, name, max(mine, value) if name in ("pss", "rss") else mine + value)

    def told(self):
        """For people and programs: seconds, KiB, processes that wanted a CPU."""
        at = lambda values, share: round(sorted(values)[min(len(values) - 1, int(share * len(values)))], 3)
        facts = {"lives": self.lives, "ends": self.kills, "while_recovering": self.recovering, "calls": self.calls}
        if self.pauses:
            facts["pause_s"] = {"count": len(self.pauses), "p50": at(self.pauses, 0.5), "p99": at(self.pauses, 0.99),
                                "longest": round(max(self.pauses), 3)}  # fmt: skip
            facts["load"] = {"median": at(self.machine, 0.5), "most": max(self.machine)}
        if self.rss:
            facts["supervisor_kib"] = {"pss": self.pss, "rss": self.rss}
        if self.changes:
            facts["changes"] = self.changes
        return {**facts, "findings": self.findings}


def sum_of(mine, more):
    """Adds numbers to those under the same keys."""
    for key, value in more.items():
        if isinstance(value, dict):
            sum_of(mine.setdefault(key, {}), value)
        else:
            mine[key] = mine.get(key, 0) + value


def running():
    """Processes that run or want to."""
    with open("/proc/loadavg") as f:
        return int(f.read().split()[3].split("/")[0])


def plan(args):
    """What each life is: every way to mount and every load in turn, in an order that belongs to the seed."""
    rng = random.Random(args.seed)
    cells = [c for c in ways() if args.cells in c.name and not ((args.next or args.changes) and c.user)]
    loads = [name for name in LOADS if name in args.loads.split(",")]
    pairs = [(cell, load) for cell in cells for load in loads if available(load, cell, args)]
    rng.shuffle(pairs)
    # One of each cell before there is a second one, and of the loads likewise.
    order, used = [], {}
    while pairs:
        pair = min(pairs, key=lambda p: (used.get(p[0], 0), used.get(p[1], 0)))
        pairs.remove(pair)
        order.append(pair)
        for part in pair:
            used[part] = used.get(part, 0) + 1
    return order


class Life:
    def __init__(self, args, number, cell, load):
        self.args, self.cell, self.load = args, cell, load
        self.rng = random.Random(f"{args.seed}/{number}")
        self.counts = Counts(lives=1)
        self.vain = 0

    def live(self):
        options = self.cell.options + (",allow_other" if self.load == "postgres" else "")
        cell = replace(self.cell, options=options)
        mount, working, changer = Mount(self.args.quayfs, self.args.dir, cell), [], None
        try:
            mount.begin()
            if self.args.changes:
                changer = Changer(mount, self.rng.randrange(10**6))
            until = os.path.join(mount.dir, "until")
            working.extend(LOADS[self.load](mount, self.args, self.rng.randrange(10**6), until))
            self.end_daemons(mount, working, changer)
            open(until, "w").close()
            for program in working:
                self.counts.calls += program.end()
            self.counts.pss, self.counts.rss = mount.memory()
            mount.end(self.counts.kills, bool(changer))
            if changer:
                changer.check()
                self.counts.changes = changer.told()
        except BaseException as e:
            if changer:
                changer.over.set()
            for program in working:
                program.abandon()
            mount.give_up()
            if not isinstance(e, (Finding, OSError, ValueError, SubprocessError)):
                raise
            self.counts.findings.append(f"{self.cell.name}, {self.load}: {type(e).__name__}: {e}; kept: {mount.dir} {mount.shm}")
        else:
            mount.remove()
        return self.counts

    def end_daemons(self, mount, working, changer):
        while not all(p.has_begun() or p.failed() for p in working):
            time.sleep(0.1)
        if changer:
            changer.start()
        most = MOST * self.args.life
        while self.counts.kills < self.args.life or self.counts.kills < most and any(p.finite and p.runs() for p in working):
            quick = self.vain and self.vain < IN_VAIN
            time.sleep(self.rng.uniform(0, 0.12 if quick else self.args.interval))
            if failed := [p for p in working if p.failed()]:
                failed[0].end()
                raise Finding(f"{failed[0].name} has ended")
            if self.args.next:
                self.replace(mount)
            else:
                self.kill(mount)
        if changer:
            changer.stop()

    def replace(self, mount):
        program = [self.args.next, self.args.quayfs][self.counts.kills % 2]
        self.counts.machine.append(running())
        self.counts.pauses.append(mount.replace(program))
        self.counts.kills += 1

    def kill(self, mount):
        at = mount.kill(self.rng.choice)
        if at is None:
            return
        self.counts.kills += 1
        self.counts.recovering += self.vain > 0
        # Most daemons are left alone until they answer, the others may die while they recover.
        if self.vain < IN_VAIN and self.rng.random() < (0.1 if self.vain == 0 else 0.5):
            self.vain += 1
            return
        self.counts.machine.append(running())
        waited = mount.answered() - at
        if self.vain == 0:
            self.counts.pauses.append(waited)
        self.vain = 0
