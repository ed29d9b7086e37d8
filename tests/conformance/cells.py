"""Ways to mount that every suite has to pass in."""

import itertools
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Cell:
    """One value of each option; the region is in memory (`volatile`) or on a disk (`file`)."""

    transport: str = "dev"
    cache: str = "writethrough"
    durability: str = "op"
    backend: str = "volatile"
    open: str = "answer"

    def __str__(self):
        return ",".join(self.values())

    def values(self):
        return [getattr(self, f.name) for f in fields(self)]

    def options(self):
        return f"transport={self.transport},{self.cache},durability={self.durability},open={self.open}"

    def differs_from(self, info):
        """What `quayfs info --json` says otherwise."""
        words = info["options"].split(",")
        said = {
            "transport": info["transport"],
            "cache": next((w for w in words if w in ("writethrough", "writeback")), None),
            "durability": info["durability"],
            "backend": info["backend"],
            "open": next((w[len("open=") :] for w in words if w.startswith("open=")), None),
        }
        return [f"{k} is {said[k]}" for k in said if said[k] != getattr(self, k)]


OTHER = Cell("uring", "writeback", "commit", "file", "elide")


def every():
    return [Cell(*v) for v in itertools.product(*zip(Cell().values(), OTHER.values(), strict=True))]


def pairs():
    """Six cells in which every two options meet in all four combinations.

    The first has the first value of each option. In the other five, each option takes its second
    value in three cells, no two options in the same three: of two such choices each has a cell that
    the other has not, and since 3 + 3 > 5 they share one.
    """
    chosen = list(itertools.islice(itertools.combinations(range(1, 6), 3), len(fields(Cell))))
    values = list(zip(Cell().values(), OTHER.values(), strict=True))
    cells = [Cell(*(v[row in c] for v, c in zip(values, chosen, strict=True))) for row in range(6)]
    for (i, a), (j, b) in itertools.combinations(enumerate(values), 2):
        met = {(cell.values()[i], cell.values()[j]) for cell in cells}
        assert met == set(itertools.product(a, b)), f"{a} and {b} do not meet in full: {met}"
    return cells


def without_rings(cells):
    """The same over `/dev/fuse` only, each once."""
    return list(dict.fromkeys(replace(c, transport="dev") for c in cells))
