"""Exchanges ranges by the calls of XFS, and asserts what becomes of the files. WHAT DIR [...]"""

import errno
import fcntl
import mmap
import os
import random
import struct
import sys

EXCHANGE_RANGE, START_COMMIT, COMMIT_RANGE = 0x40285881, 0x80585882, 0x40585883
TO_EOF, DSYNC, DRY_RUN, FILE1_WRITTEN = 1, 2, 4, 8
B = 4096


def exchange(other, one, offsets=(0, 0), length=0, flags=0, pad=0):
    """The errno, 0 for a success. `other`: whose descriptor takes the call."""
    args = struct.pack("=iIQQQQ", one, pad, offsets[0], offsets[1], length, flags)
    return answer(lambda: fcntl.ioctl(other, EXCHANGE_RANGE, args))


def answer(call):
    try:
        call()
        return 0
    except OSError as e:
        return e.errno


def same(got, want):
    assert got == want, f"{errno.errorcode.get(got, got)}, should be {errno.errorcode.get(want, want)}"


def filled(path, content):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, content)
    return fd


def content(path):
    with open(path, "rb") as f:
        return f.read()


def pair(directory, one, other):
    paths = [os.path.join(directory, name) for name in ("one", "other")]
    return paths, filled(paths[0], one), filled(paths[1], other)


def whole(directory):
    """Files as a whole, ranges of them, and what the caches knew of them before."""
    long, short = os.urandom(3 * B + 100), os.urandom(B + 7)
    paths, one, other = pair(directory, long, short)
    assert [content(p) for p in paths] == [long, short]
    same(exchange(other, one, flags=TO_EOF | DSYNC), 0)
    assert [content(p) for p in paths] == [short, long]
    assert [os.stat(p).st_size for p in paths] == [len(short), len(long)]
    os.ftruncate(one, 4 * B)
    before = [content(p) for p in paths]
    same(exchange(other, one, (2 * B, B), B), 0)
    assert content(paths[0]) == before[0][: 2 * B] + before[1][B : 2 * B] + before[0][3 * B :]
    assert content(paths[1]) == before[1][:B] + before[0][2 * B : 3 * B] + before[1][2 * B :]
    same(exchange(other, one, (2 * B, B), B, DRY_RUN), 0)
    assert content(paths[1]) == before[1][:B] + before[0][2 * B : 3 * B] + before[1][2 * B :]
    # Within one file, and only what was written.
    now = content(paths[0])
    same(exchange(one, one, (0, 2 * B), B), 0)
    assert content(paths[0]) == now[2 * B : 3 * B] + now[B : 2 * B] + now[:B] + now[3 * B :]
    hole = filled(os.path.join(directory, "hole"), b"")
    os.ftruncate(hole, 3 * B)
    os.pwrite(hole, b"x" * B, B)
    kept = content(paths[1])
    same(exchange(other, hole, (0, 0), 3 * B, FILE1_WRITTEN), 0)
    assert content(paths[1]) == kept[:B] + b"x" * B + kept[2 * B :]


def refused(directory, elsewhere):
    """What must not be, and changes nothing."""
    a, b = os.urandom(2 * B + 5), os.urandom(3 * B)
    paths, one, other = pair(directory, a, b)
    same(exchange(other, one, length=B, pad=1), errno.EINVAL)
    same(exchange(other, one, length=B, flags=1 << 40), errno.EINVAL)
    same(exchange(other, one, (1, 0), B), errno.EINVAL)
    same(exchange(other, one, (0, 0), B + 1), errno.EINVAL)
    same(exchange(other, one, (0, 0), 3 * B), errno.EINVAL)
    same(exchange(other, one, (4 * B, 0), 0, TO_EOF), errno.EINVAL)
    same(exchange(one, one, (0, B), 2 * B), errno.EINVAL)
    same(exchange(other, 999, length=B), errno.EBADF)
    same(exchange(other, one, length=0), 0)
    reader = os.open(paths[0], os.O_RDONLY)
    same(exchange(other, reader, length=B), errno.EBADF)
    appender = os.open(paths[0], os.O_RDWR | os.O_APPEND)
    same(exchange(other, appender, length=B), errno.EBADF)
    foreign = filled(os.path.join(elsewhere, "foreign"), b)
    same(exchange(other, foreign, length=B), errno.EXDEV)
    same(exchange(other, os.open(directory, os.O_RDONLY), length=B), errno.EBADF)
    os.close(other)
    reader = os.open(paths[1], os.O_RDONLY)
    same(exchange(reader, one, length=B), errno.EBADF)
    same(exchange(os.open(directory, os.O_RDONLY), one, length=B), errno.EBADF)
    assert [content(p) for p in paths] == [a, b]


def mapped(directory):
    """What was written to memory only goes along."""
    paths, one, other = pair(directory, b"1" * 4 * B, b"2" * 4 * B)
    with mmap.mmap(one, 4 * B) as memory:
        memory[B : B + 3] = b"new"
        same(exchange(other, one, length=2 * B), 0)
        assert memory[:B] == b"2" * B, "the mapping shows what the file has become"
        assert content(paths[1])[B : B + 4] == b"new1"
        memory[:3] = b"own"
    assert content(paths[0])[:4] == b"own2" and content(paths[1])[:4] == b"1111"


def commits(directory):
    """A change in between is found out."""
    paths, one, other = pair(directory, b"1" * B, b"2" * B)

    def start():
        return bytearray(fcntl.ioctl(other, START_COMMIT, bytes(88)))

    def commit(sample):
        args = struct.pack("=iIQQQQ", one, 0, 0, 0, B, 0)
        return answer(lambda: fcntl.ioctl(other, COMMIT_RANGE, args + bytes(sample[40:])))

    sample = start()
    same(commit(sample), 0)
    assert content(paths[1]) == b"1" * B
    same(commit(sample), errno.EBUSY)
    sample = start()
    os.pwrite(other, b"!", 5)
    same(commit(sample), errno.EBUSY)
    same(commit(bytes(88)), errno.EINVAL)
    sample = start()
    os.utime(paths[0])
    same(commit(sample), 0)
    assert content(paths[0])[:6] == b"11111!"


def crowd(directory):
    """Processes that exchange, write, read and map the same two files: each block is of one piece at the end,
    and nobody waits for ever."""
    blocks = 16
    paths, one, other = pair(directory, b"a" * B * blocks, b"b" * B * blocks)
    children = []
    for n in range(6):
        pid = os.fork()
        if pid == 0:
            rng = random.Random(n)
            ours = [os.open(p, os.O_RDWR) for p in paths]
            memory = [mmap.mmap(fd, B * blocks) for fd in ours]
            for i in range(150):
                first, second = rng.sample([0, 1], 2)
                at = rng.randrange(blocks - 4) * B
                if n < 3:
                    same(exchange(ours[first], ours[second], (at, at), 4 * B), 0)
                elif n < 5:
                    os.pwrite(ours[first], bytes([97 + n]) * B, at)
                    seen = os.pread(ours[second], B, at)
                    assert len(seen) == B
                else:
                    memory[first][at : at + B] = b"m" * B
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    for path in paths:
        assert os.stat(path).st_size == B * blocks


def collected(directory):
    """Where the kernel collects writes it believes in no size but its own."""
    paths, one, other = pair(directory, b"1" * 3 * B, b"2" * B)
    same(exchange(other, one, flags=TO_EOF), errno.EOPNOTSUPP)
    same(exchange(other, one, length=B), 0)
    assert content(paths[0]) == b"2" * B + b"1" * 2 * B and content(paths[1]) == b"1" * B


START, COMMIT, ABORT, FEATURES = 0xF501, 0xF502, 0xF505, 0x8004F50C


def atomic(directory):
    """Writes between two calls are one; until then they are nobody else's, and a death forgets them."""
    path = os.path.join(directory, "file")
    fd = filled(path, b"1" * 3 * B)
    assert struct.unpack("=I", fcntl.ioctl(fd, FEATURES, bytes(4)))[0] & 4
    same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.EINVAL)

    def begin():
        fcntl.ioctl(fd, START)
        os.pwrite(fd, b"2" * B, 2 * B)
        os.pwrite(fd, b"new", B - 1)
        os.pwrite(fd, b"end", 7 * B)

    def drop_cache():
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    old = b"1" * 3 * B
    new = b"1" * (B - 1) + b"new" + b"1" * (B - 2) + b"2" * B + bytes(4 * B) + b"end"
    begin()
    assert content(path) == new and os.stat(path).st_size == len(new)
    drop_cache()
    assert content(path) == new
    same(answer(lambda: os.ftruncate(fd, 1)), errno.EBUSY)
    fcntl.ioctl(fd, ABORT)
    assert content(path) == old and os.stat(path).st_size == len(old)
    same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.EINVAL)
    # Who closes the file or dies gives up.
    for end in (lambda: os.close(fd), lambda: os.kill(os.getpid(), 9)):
        pid = os.fork()
        if pid == 0:
            fd = os.open(path, os.O_RDWR)
            begin()
            end()
            os._exit(0)
        os.waitpid(pid, 0)
        fd = os.open(path, os.O_RDWR)
        assert content(path) == old and os.stat(path).st_size == len(old)
    # Others write as ever, and cannot begin nor end what is not theirs.
    begin()
    pid = os.fork()
    if pid == 0:
        same(answer(lambda: fcntl.ioctl(fd, START)), errno.EBUSY)
        same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.EINVAL)
        fcntl.ioctl(fd, ABORT)
        os.pwrite(fd, b"other", 10)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    fcntl.ioctl(fd, COMMIT)
    drop_cache()
    assert content(path) == new[:10] + b"other" + new[15:]
    assert os.stat(path).st_size == len(new)
    # More than a record can hold.
    fcntl.ioctl(fd, START)
    for block in range(2000):
        refused = answer(lambda: os.pwrite(fd, b"x" * B, block * 2 * B))
        if refused:
            break
    same(refused, errno.EFBIG)
    fcntl.ioctl(fd, ABORT)
    assert content(path)[:1] == b"1" and os.stat(path).st_size == len(new)


def unoffered(directory):
    fd = filled(os.path.join(directory, "file"), b"1")
    for call in (FEATURES, START, COMMIT, ABORT):
        same(answer(lambda: fcntl.ioctl(fd, call, bytes(4) if call == FEATURES else 0)), errno.ENOTTY)


globals()[sys.argv[1]](*sys.argv[2:])
