"""Blocks and lines that say what they are, written by several threads.

A block names its file, its place, its sequence number and has a checksum, so that any block found
anywhere is judged by itself: is it whole, does it belong there, is it old enough to have been
replaced, is it of a file that is gone? Each thread also owns a file that is deleted and made again under
another number, so that blocks go around, and a log of lines that it appends to. And what is there of a thread, in
all its files, has to be what a beginning of its operations leaves.
"""

import mmap
import os
import random
import struct
import threading
import zlib

from common import PAGE, SYNC, Ledger, lines, main, replace, whole

THREADS = 4
SHARED = 2
GROUP, GROUPS = 16, 24
HEADER = struct.Struct("<8sQQQII")
MAGIC = b"quayblok"
LINE = struct.Struct("<4sHHQI")


def block(file, index, seq, first, count):
    head = HEADER.pack(MAGIC, file, index, seq, first, count)
    word = struct.pack("<Q", (file << 40 ^ index << 20 ^ seq) & (2**64 - 1))
    body = (head + word * 512)[: PAGE - 4]
    return body + struct.pack("<I", zlib.crc32(body))


def line(thread, seq):
    body = random.Random(seq).randbytes(seq * 7919 % 3000)
    head = LINE.pack(b"line", thread, len(body), seq, zlib.crc32(body))
    return head + body


def own_file(thread, seq):
    """Number of the file that a thread made at `seq`; the shared ones have small numbers."""
    return (thread + 1) << 32 | seq


def path(directory, file):
    return os.path.join(directory, f"b{file:x}")


class Writer:
    def __init__(self, directory, ledgers, seed, thread):
        self.directory, self.thread = directory, thread
        self.state = State(ledgers, thread)
        self.ledger = Ledger(f"{ledgers}/{thread}")
        self.seq = self.state.newest
        self.rng = random.Random(f"{seed}/{thread}/{self.seq}")
        self.own = self.state.own
        self.buffer = mmap.mmap(-1, GROUP * PAGE)
        self.fds = {}

    def fd(self, file, direct):
        key = (file, direct)
        if key not in self.fds:
            flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0)
            self.fds[key] = os.open(path(self.directory, file), flags, 0o644)
        return self.fds[key]

    def settle(self, fd):
        """Acknowledges all this thread did so far, if anything is left to do for that."""
        if SYNC:
            os.fsync(fd)
            self.ledger.note("sync", self.seq)

    def run(self):
        log = os.open(f"{self.directory}/log{self.thread}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        while True:
            self.seq += 1
            pick = self.rng.random()
            if pick < 0.02 or self.own is None:
                self.renew()
            elif pick < 0.25:
                self.ledger.note("line?", self.seq)
                text = line(self.thread, self.seq)
                whole(os.write(log, text), len(text))
                self.ledger.note("line", self.seq)
            else:
                self.blocks()
            if SYNC and self.rng.random() < 0.2:
                self.settle(log)

    def renew(self):
        """Deletes this thread's own file and makes the next."""
        if self.own is not None:
            self.ledger.note("gone?", self.seq, self.own)
            for key in [k for k in self.fds if k[0] == self.own]:
                os.close(self.fds.pop(key))
            os.unlink(path(self.directory, self.own))
            self.ledger.note("gone", self.seq, self.own)
        self.own = own_file(self.thread, self.seq)
        self.ledger.note("new?", self.seq, self.own)
        os.close(os.open(path(self.directory, self.own), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
        self.ledger.note("new", self.seq, self.own)

    def blocks(self):
        if self.rng.random() < 0.5:
            file, group = self.own, self.rng.randrange(6)
        else:
            file = self.rng.randrange(SHARED)
            group = self.rng.randrange(GROUPS // THREADS) * THREADS + self.thread
        start = self.rng.randrange(GROUP)
        count = min(self.rng.choice([1, 1, 2, 4, 16]), GROUP - start)
        first = group * GROUP + start
        direct = self.rng.random() < 0.3
        data = b"".join(block(file, first + i, self.seq, first, count) for i in range(count))
        self.buffer[: len(data)] = data
        fd = self.fd(file, direct)
        self.ledger.note("put?", self.seq, file, first, count, int(direct))
        with memoryview(self.buffer)[: len(data)] as view:
            whole(os.pwritev(fd, [view], first * PAGE), len(data))
        self.ledger.note("put", self.seq, file, first, count, int(direct))


class State:
    """What the ledger of a thread says, on top of what the last check found."""

    def __init__(self, ledgers, thread):
        self.base, self.blocks, self.lines, self.maybe_lines = 0, {}, [], set()
        self.own, self.maybe_gone, self.gone, self.maybe_new = None, set(), set(), set()
        self.in_flight, self.acknowledged = None, 0
        self.newest = 0
        pending = []
        for w in lines(f"{ledgers}/{thread}.base") + lines(f"{ledgers}/{thread}"):
            verb, seq = w[0], int(w[1])
            self.newest = max(self.newest, seq)
            if verb == "sync":
                for p in pending:
                    self.settle(*p)
                pending = []
            elif verb.endswith("?"):
                self.in_flight = (verb, seq, *map(int, w[2:]))
                self.announce(verb, seq, *map(int, w[2:]))
            else:
                self.in_flight = None
                if SYNC and not verb.startswith("base"):
                    pending.append((verb, seq, *map(int, w[2:])))
                else:
                    self.settle(verb, seq, *map(int, w[2:]))

    def announce(self, verb, seq, *a):
        if verb == "put?":
            for i in range(a[1], a[1] + a[2]):
                self.blocks.setdefault((a[0], i), []).append(seq)
        elif verb == "line?":
            self.maybe_lines.add(seq)
        elif verb == "gone?":
            self.maybe_gone.add(a[0])
        elif verb == "new?":
            self.maybe_new.add(a[0])
            self.own = a[0]

    def settle(self, verb, seq, *a):
        if not verb.startswith("base"):
            self.acknowledged += 1
        verb = verb.removeprefix("base-")
        if verb == "put":
            for i in range(a[1], a[1] + a[2]):
                held = self.blocks.setdefault((a[0], i), [])
                self.blocks[a[0], i] = [s for s in held if s > seq]
                self.blocks[a[0], i].insert(0, -seq)
        elif verb == "line":
            self.lines.append(seq)
            self.maybe_lines.discard(seq)
        elif verb == "gone":
            self.maybe_gone.discard(a[0])
            self.gone.add(a[0])
            for key in [k for k in self.blocks if k[0] == a[0]]:
                del self.blocks[key]
            if self.own == a[0]:
                self.own = None
        elif verb == "new":
            self.maybe_new.discard(a[0])
            self.own = a[0]


def check_block(findings, name, file, index, data, held):
    """The sequence number that the block holds, 0 for zeros; `held`: those it may hold, the
    acknowledged one negative and in front."""
    sure = -held[0] if held and held[0] < 0 else 0
    allowed = {abs(s) for s in held}
    where = f"{name} block {index}"
    if not any(data):
        if sure:
            findings.add(f"{where}: zeros, {sure} was acknowledged")
        return 0
    magic, f, i, seq, first, count = HEADER.unpack_from(data)
    if magic != MAGIC or data != block(f, i, seq, first, count):
        findings.add(f"{where}: torn, or no block at all: {data[:48].hex()}")
    elif f != file or i != index:
        findings.add(f"{where}: belongs to file {f:x} block {i}, number {seq}")
    elif seq not in allowed:
        findings.add(f"{where}: number {seq}, but {sure} was acknowledged, and {sorted(allowed)[-4:]} may be")
    return seq


def check_file(findings, directory, file, states, out, there):
    """All blocks of a file. `out`, `there`: what was found, by thread."""
    name = f"b{file:x}"
    owner = (file >> 32) - 1
    with open(path(directory, file), "rb") as f:
        data = f.read()
    if len(data) % PAGE:
        findings.add(f"{name} has {len(data)} bytes, which no write leaves")
    seen = {}
    last = max([i for s in states for (x, i) in s.blocks if x == file], default=-1)
    for i in range(max(last + 1, len(data) // PAGE)):
        thread = owner if owner >= 0 else i // GROUP % THREADS
        held = states[thread].blocks.get((file, i), [])
        found = data[i * PAGE : (i + 1) * PAGE].ljust(PAGE, b"\0")
        seq = check_block(findings, name, file, i, found, held)
        if seq:
            seen[i] = seq
            there[thread][file, i] = seq
            out[thread].append(f"base-put {seq} {file} {i} 1 0")
    if not SYNC:
        for state in states:
            # A direct write is one request, and so is there as a whole or not at all.
            if state.in_flight and state.in_flight[0] == "put?" and state.in_flight[2] == file:
                _, seq, _, first, count, direct = state.in_flight
                there = [seen.get(i) == seq for i in range(first, first + count)]
                if direct and any(there) and not all(there):
                    findings.add(f"{name}: direct write {seq} of {count} blocks at {first} is there in part")


def check_log(findings, directory, thread, state, out):
    """The lines that are there: in order, all acknowledged ones among them; the tail that no line is goes away."""
    name = f"{directory}/log{thread}"
    data = b""
    if os.path.exists(name):
        with open(name, "rb") as f:
            data = f.read()
    at, seen = 0, []
    while at + LINE.size <= len(data):
        magic, owner, length, seq, crc = LINE.unpack_from(data, at)
        body = data[at + LINE.size : at + LINE.size + length]
        if magic != b"line" or owner != thread or len(body) != length or zlib.crc32(body) != crc or body != line(thread, seq)[LINE.size :]:
            break
        seen.append(seq)
        at += LINE.size + length
    rest = data[at:]
    if rest and not any(line(thread, s).startswith(rest) for s in state.maybe_lines):
        findings.add(f"log{thread}: {len(rest)} foreign bytes at {at}: {rest[:32].hex()}")
    if seen != sorted(set(seen)):
        findings.add(f"log{thread}: lines out of order")
    lost = set(state.lines) - set(seen)
    if lost:
        findings.add(f"log{thread}: acknowledged lines are lost: {sorted(lost)[:5]}")
    strange = set(seen) - set(state.lines) - state.maybe_lines
    if strange:
        findings.add(f"log{thread}: lines nobody wrote: {sorted(strange)[:5]}")
    at, kept = (at, seen) if at <= 600_000 else (0, [])
    if rest or at < len(data):
        with open(name, "r+b") as f:
            f.truncate(at)
            os.fsync(f.fileno())
    out.extend(f"base-line {s}" for s in kept)
    return seen


def states_of(ledgers, thread):
    """What is there of a thread after each of its operations, as far as it has come: blocks, lines, its own file. A
    write that is not direct may be there in part, block after block."""
    blocks, said, own = {}, [], None
    for verb, seq, *a in ([w[0], *map(int, w[1:])] for w in lines(f"{ledgers}/{thread}.base")):
        if verb == "base-put":
            blocks[a[0], a[1]] = seq
        elif verb == "base-line":
            said.append(seq)
        elif verb == "base-new":
            own = a[0]
    yield blocks, said, own
    for verb, seq, *a in ([w[0], *map(int, w[1:])] for w in lines(f"{ledgers}/{thread}") if w[0].endswith("?")):
        if verb == "put?":
            file, first, count, direct = a
            for i in range(first, first + count):
                blocks[file, i] = seq
                if not direct and i < first + count - 1:
                    yield blocks, said, own
        elif verb == "line?":
            said.append(seq)
        elif verb == "gone?":
            blocks, own = {k: s for k, s in blocks.items() if k[0] != a[0]}, None
        elif verb == "new?":
            own = a[0]
        yield blocks, said, own


def check_order(findings, ledgers, thread, found):
    """If a later operation is there, every earlier one is."""
    if found not in states_of(ledgers, thread):
        blocks, said, own = found
        newest = max([*blocks.values(), *said], default=0)
        findings.add(f"thread {thread}: no beginning of its operations leaves what is there; {newest} is, own file {own}")


def check(directory, ledgers, _seed, findings):
    states = [State(ledgers, t) for t in range(THREADS)]
    out = [[f"base {s.newest}"] for s in states]
    there, logs = [{} for _ in states], []
    names = set(os.listdir(directory))
    for thread, state in enumerate(states):
        logs.append(check_log(findings, directory, thread, state, out[thread]))
        for file in state.gone:
            if f"b{file:x}" in names:
                findings.add(f"b{file:x} is back, its deletion was acknowledged")
        own = state.own
        if own is not None and own not in state.maybe_new | state.maybe_gone and f"b{own:x}" not in names:
            findings.add(f"b{own:x} is lost")
    for name in sorted(names):
        if not name.startswith("b"):
            continue
        file = int(name[1:], 16)
        owner = (file >> 32) - 1
        if owner >= 0:
            state = states[owner]
            if file != state.own and file not in state.maybe_gone | state.maybe_new:
                findings.add(f"{name} was never made, or deleted")
                continue
        check_file(findings, directory, file, states, out, there)
        if owner >= 0:
            out[owner].append(f"base-new {file & 0xFFFFFFFF} {file}")
    for file in range(SHARED):
        if f"b{file:x}" not in names and any(k[0] == file and h[0] < 0 for s in states for k, h in s.blocks.items()):
            findings.add(f"b{file:x} is lost")
    for thread in range(THREADS):
        mine = [n for n in sorted(names) if n[0] == "b" and int(n[1:], 16) >> 32 == thread + 1]
        if len(mine) > 1:
            # The older was deleted before the newer was made.
            findings.add(f"{mine[0]} and its successor {mine[1]} are both there")
        own = int(mine[0][1:], 16) if mine else None
        check_order(findings, ledgers, thread, (there[thread], logs[thread], own))
    if not findings.count:
        for thread in range(THREADS):
            replace(f"{ledgers}/{thread}.base", ("\n".join(out[thread]) + "\n").encode())
            replace(f"{ledgers}/{thread}", b"")
    return sum(s.acknowledged for s in states)


def write(directory, ledgers, seed):
    failed = []

    def live(thread):
        try:
            Writer(directory, ledgers, seed, thread).run()
        except OSError as e:
            failed.append(e)

    threads = [threading.Thread(target=live, args=(t,)) for t in range(THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    raise failed[0]


if __name__ == "__main__":
    main(write, check)
