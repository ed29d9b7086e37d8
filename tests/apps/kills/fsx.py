"""Random operations on a few files against a model in memory, in the manner of fsx: writes, reads,
truncates, fallocate, holes, shared mappings, copies, renames.

One history for all files: after a crash the tree is what some prefix of it leaves, no shorter than
what was acknowledged. The operation at its end may be done in part where docs/semantics.md says that
it takes several records, never within a page; that of a mapping wherever the program had come to with its stores.
"""

import ctypes
import mmap
import os
import pickle
import random
import sys

from common import PAGE, SYNC, Ledger, lines, main, replace, whole

NAMES = ["f0", "f1", "f2", "f3"]
MAX = 384 << 10
KEEP_SIZE, PUNCH, ZERO = 1, 2, 16
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def pattern(n, length):
    return random.Random(n).randbytes(length)


def choose(rng, n, model):
    """The next operation: a list of words that says all of it."""
    name = rng.choice(NAMES)
    if name not in model:
        return ["create", name]
    size = len(model[name])
    kind = rng.choices(
        ["write", "append", "direct", "truncate", "fallocate", "keep", "punch", "zero", "map", "copy", "rename", "unlink"],
        [30, 12, 10, 10, 5, 3, 8, 5, 8, 5, 3, 1],
    )[0]
    off = rng.randrange(MAX)
    length = rng.choice([rng.randrange(1, 200), rng.randrange(1, 3 * PAGE), rng.randrange(1, 40 * PAGE)])
    if kind == "append":
        kind, off = "write", size
    if kind == "direct":
        off, length = off // PAGE * PAGE, min(-(-length // PAGE), 8) * PAGE
    length = min(length, MAX - off)
    if kind == "direct" and length < PAGE:
        return ["truncate", name, 0]
    if length == 0:
        return ["truncate", name, rng.randrange(MAX)]
    if kind == "truncate":
        return ["truncate", name, rng.choice([0, size // 2, rng.randrange(MAX), rng.randrange(MAX) // PAGE * PAGE])]
    if kind == "map":
        if size == 0:
            return ["truncate", name, rng.randrange(MAX)]
        off = rng.randrange(size)
        return ["map", name, off, min(length, size - off)]
    if kind in ("copy", "rename"):
        other = rng.choice([x for x in NAMES if x != name])
        if kind == "rename":
            return ["rename", name, other]
        if size == 0 or other not in model:
            return ["create", other] if other not in model else ["truncate", name, 5000]
        start = rng.randrange(size)
        return ["copy", name, start, other, off, min(length, size - start)]
    if kind == "unlink":
        return ["unlink", name]
    return [kind, name, off, length]


def put(data, off, content):
    if off > len(data):
        data.extend(bytes(off - len(data)))
    data[off : off + len(content)] = content


def apply(model, n, op, done=None):
    """The model after operation `n`. `done`: bytes that a copy says it copied."""
    kind, name = op[0], op[1]
    if kind == "create":
        model[name] = bytearray()
    elif kind in ("write", "direct", "map"):
        put(model[name], int(op[2]), pattern(n, int(op[3])))
    elif kind == "truncate":
        size = int(op[2])
        data = model[name]
        del data[size:]
        data.extend(bytes(size - len(data)))
    elif kind in ("fallocate", "keep", "punch", "zero"):
        off, length, data = int(op[2]), int(op[3]), model[name]
        if kind == "punch":
            length = max(0, min(length, len(data) - off))
        if kind in ("punch", "zero"):
            if length:
                put(data, off, bytes(length))
        elif kind == "fallocate" and off + length > len(data):
            data.extend(bytes(off + length - len(data)))
    elif kind == "copy":
        start, other, off = int(op[2]), op[3], int(op[4])
        length = int(op[5]) if done is None else done
        if length:
            put(model[other], off, bytes(model[name][start : start + length]))
    elif kind == "rename":
        model[op[2]] = model.pop(name)
    elif kind == "unlink":
        del model[name]


class Files:
    """The real ones, opened when needed and kept open for a while."""

    def __init__(self, directory):
        self.directory, self.open = directory, {}
        self.aligned = mmap.mmap(-1, 64 * PAGE)

    def path(self, name):
        return os.path.join(self.directory, name)

    def fd(self, name, flags=0):
        key = (name, flags)
        if key not in self.open:
            self.open[key] = os.open(self.path(name), os.O_RDWR | flags)
        return self.open[key]

    def forget(self):
        for fd in self.open.values():
            os.close(fd)
        self.open = {}

    def run(self, n, op):
        kind, name = op[0], op[1]
        if kind == "create":
            os.close(os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
        elif kind == "write":
            whole(os.pwrite(self.fd(name), pattern(n, op[3]), op[2]), op[3])
        elif kind == "direct":
            self.aligned[: op[3]] = pattern(n, op[3])
            with memoryview(self.aligned)[: op[3]] as view:
                whole(os.pwritev(self.fd(name, os.O_DIRECT), [view], op[2]), op[3])
        elif kind == "map":
            first = op[2] // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            with mmap.mmap(self.fd(name), op[2] + op[3] - first, offset=first) as m:
                m[op[2] - first : op[2] - first + op[3]] = pattern(n, op[3])
                m.flush()
            # In `durability=op` nobody asks the daemon at `msync`, and Linux forgets that it could not
            # write to a dead one: an answer of the daemon says that it was alive.
            os.fstatvfs(self.fd(name))
        elif kind == "truncate":
            os.ftruncate(self.fd(name), op[2])
        elif kind in ("fallocate", "keep", "punch", "zero"):
            mode = {"fallocate": 0, "keep": KEEP_SIZE, "punch": KEEP_SIZE | PUNCH, "zero": ZERO}[kind]
            if libc.fallocate(self.fd(name), mode, op[2], op[3]) != 0:
                raise OSError(ctypes.get_errno(), f"fallocate({kind})")
        elif kind == "copy":
            return os.copy_file_range(self.fd(name), self.fd(op[3]), op[5], op[2], op[4])
        elif kind == "rename":
            self.forget()
            os.rename(self.path(name), self.path(op[2]))
        elif kind == "unlink":
            self.forget()
            os.unlink(self.path(name))
        return None


def write(directory, ledgers, seed):
    n, model = load(ledgers)
    ledger = Ledger(f"{ledgers}/ops")
    rng = random.Random(f"{seed}/{n}")
    files = Files(directory)
    while True:
        if model and rng.random() < 0.25:
            look(files, model, rng)
        n += 1
        op = choose(rng, n, model)
        ledger.note("try", n, *op)
        done = files.run(n, op)
        ledger.note("did", n, -1 if done is None else done)
        apply(model, n, op, done)
        if rng.random() < 0.02:
            files.forget()
        if SYNC and rng.random() < 0.15:
            if model:
                os.fsync(files.fd(rng.choice(list(model))))
                ledger.note("sync", n)


def look(files, model, rng):
    """Reads somewhere and compares."""
    name = rng.choice(list(model))
    data = model[name]
    off, length = rng.randrange(MAX), rng.randrange(1, 30 * PAGE)
    fd = files.fd(name)
    if rng.random() < 0.2 and data:
        with mmap.mmap(fd, len(data), prot=mmap.PROT_READ) as m:
            got = m[off : off + length]
    else:
        got = os.pread(fd, length, off)
    wanted = bytes(data[off : off + length])
    if wanted.startswith(got):
        # A file system that dies while it reads may answer with the beginning.
        whole(len(got), len(wanted))
    else:
        print(f"finding: {name}, {length} bytes at {off} are not what was written", file=sys.stderr)
        sys.exit(4)


def load(ledgers):
    try:
        with open(f"{ledgers}/base", "rb") as f:
            return pickle.load(f)
    except FileNotFoundError:
        return 0, {}


def read_tree(directory):
    tree = {}
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), "rb") as f:
            tree[name] = bytearray(f.read())
    return tree


def page(data, i):
    return bytes(data[i * PAGE : (i + 1) * PAGE]).ljust(PAGE, b"\0")


def is_mixture(found, old, new):
    return all(f in (o, n) for f, o, n in zip(found, old, new))


def partly(before, after, found, op):
    """Whether `found` is what a part of `op` makes of `before`."""
    if op[0] not in ("write", "direct", "map", "fallocate", "keep", "punch", "zero", "copy"):
        return False
    target = op[3] if op[0] == "copy" else op[1]
    if set(found) != set(before) or any(found[x] != before[x] for x in found if x != target):
        return False
    old, new, is_ = before[target], after[target], found[target]
    low, high = sorted((len(old), len(new)))
    if not (len(is_) in (low, high) or (low < len(is_) < high and len(is_) % PAGE == 0)):
        return False
    pages = range(-(-max(high, len(is_)) // PAGE))
    kinds = [(page(is_, i) == page(old, i), page(is_, i) == page(new, i)) for i in pages]
    if op[0] == "map":
        # The kernel may write a page at any time, also while the program stores to it, in an order that is memcpy's.
        mixed = zip(pages, kinds)
        return all(a or b or is_mixture(page(is_, i), page(old, i), page(new, i)) for i, (a, b) in mixed)
    if not all(a or b for a, b in kinds):
        return False
    if op[0] in ("write", "direct", "copy"):
        # Requests follow each other: a page that is still old is not followed by a new one.
        firm = [a for a, b in kinds if a != b]
        return firm == sorted(firm)
    return True


def check(directory, ledgers, _seed, findings):
    n, model = load(ledgers)
    ops, done, synced = [], {}, n
    for w in lines(f"{ledgers}/ops"):
        if w[0] == "try":
            ops.append((int(w[1]), w[2:]))
        elif w[0] == "did":
            done[int(w[1])] = None if w[2] == "-1" else int(w[2])
        else:
            synced = int(w[1])
    sure = synced if SYNC else n + len(done)
    found = read_tree(directory)
    holds = sure <= n and found == model
    for i, op in ops:
        before = {k: bytes(v) for k, v in model.items()} if i > sure else None
        apply(model, i, op, done.get(i))
        if i >= sure and found == model:
            holds = True
        elif before is not None and not holds and partly(before, model, found, op):
            holds = True
    if not holds:
        last = ops[-1] if ops else None
        what = [
            f"{x} has {len(found.get(x, b''))} bytes, first difference at {difference(found.get(x), model.get(x))}"
            for x in NAMES
            if found.get(x) != model.get(x)
        ]
        findings.add(f"no state from operation {sure} on (last {last}): {'; '.join(what)}")
    newest = ops[-1][0] if ops else n
    if not findings.count:
        replace(f"{ledgers}/base", pickle.dumps((newest, found)))
        replace(f"{ledgers}/ops", b"")
    return sure - n


def difference(a, b):
    if a is None or b is None:
        return "its existence"
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


if __name__ == "__main__":
    main(write, check)
