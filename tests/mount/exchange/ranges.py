"""Exchanges ranges by the calls of XFS, and asserts what becomes of the files. WHAT DIR [...]"""

EXCHANGE_RANGE, START_COMMIT, COMMIT_RANGE = 0x40285881, 0x80585882, 0x40585883
TO_EOF, DSYNC, DRY_RUN, FILE1_WRITTEN = 1, 2, 4, 8


def exchange(other, one, offsets=(0, 0), length=0, flags=0, pad=0):
    """The errno, 0 for a success. `other`: whose descriptor takes the call."""
    args = struct.pack("=iIQQQQ", one, pad, offsets[0], offsets[1], length, flags)
    return answer(lambda: fcntl.ioctl(other, EXCHANGE_RANGE, args))


def pair(directory, one, other):
    paths = [os.path.join(directory, name) for name in ("one", "other")]
    return paths, filled(paths[0], one), filled(paths[1], other)


def whole(directory):
    """Files as a whole, ranges of them, and what the caches knew of them before."""
    long, short = os.urandom(3 * B + 100), os.urandom(B + 7)
    paths, one, other = pair(directory, long, short)
    readers = [os.open(p, os.O_RDONLY) for p in paths]

    def seen(*want):
        for reader, path, content_of in zip(readers, paths, want):
            assert sent(reader, 0, 9 * B) == content_of
            assert os.pread(reader, 9 * B, 0) == content_of
            assert content(path) == content_of and os.stat(path).st_size == len(content_of)

    seen(long, short)
    same(exchange(other, one, flags=TO_EOF | DSYNC), 0)
    seen(short, long)
    os.ftruncate(one, 4 * B)
    a, b = (content(p) for p in paths)
    same(exchange(other, one, (2 * B, B), B), 0)
    a, b = a[: 2 * B] + b[B : 2 * B] + a[3 * B :], b[:B] + a[2 * B : 3 * B] + b[2 * B :]
    seen(a, b)
    same(exchange(other, one, (2 * B, B), B, DRY_RUN), 0)
    seen(a, b)
    # Within one file, and only what was written.
    same(exchange(one, one, (0, 2 * B), B), 0)
    a = a[2 * B : 3 * B] + a[B : 2 * B] + a[:B] + a[3 * B :]
    seen(a, b)
    hole = filled(os.path.join(directory, "hole"), b"")
    os.ftruncate(hole, 3 * B)
    os.pwrite(hole, b"x" * B, B)
    same(exchange(other, hole, (0, 0), 3 * B, FILE1_WRITTEN), 0)
    seen(a, b[:B] + b"x" * B + b[2 * B :])
    # A hole comes along as one.
    same(exchange(other, hole, (0, 0), B), 0)
    seen(a, bytes(B) + b"x" * B + b[2 * B :])
    assert os.lseek(other, 0, os.SEEK_DATA) == B


def grown(directory):
    """A file that has grown has done so for readers that do not ask for its size, too."""
    long, short = os.urandom(5 * B + 100), os.urandom(B + 7)
    for turn in range(4):
        paths, one, other = pair(directory, long, short)
        reader = os.open(paths[1], os.O_RDONLY)
        appender = os.open(paths[1], os.O_WRONLY | os.O_APPEND)
        assert os.pread(reader, 9 * B, 0) == short
        shown = mmap.mmap(reader, len(short), prot=mmap.PROT_READ)
        stored = mmap.mmap(other, len(short))
        assert shown[:] == short
        stored[3:6] = b"new"
        short_now = short[:3] + b"new" + short[6:]
        same(exchange(other, one, flags=TO_EOF), 0)
        now = long
        if turn == 0:
            assert sent(reader, 4 * B, 9 * B) == long[4 * B :]
        elif turn == 1:
            # No stat in between: the mapping would end in the middle.
            with MapWhole(reader, 6) as m:
                assert m.page(5)[:100] == long[5 * B :]
        elif turn == 2:
            assert os.write(appender, b"appended") == 8
            now = long + b"appended"
        else:
            assert os.lseek(reader, 0, os.SEEK_END) == len(long)
        assert shown[:] == long[: len(short)]
        assert content(paths[1]) == now and os.pread(reader, 9 * B, 0) == now
        assert content(paths[0]) == short_now and os.stat(paths[0]).st_size == len(short)
        assert sent(one, 0, 9 * B) == short_now
        # And back: what was there before is not to be seen behind the end.
        os.ftruncate(other, len(long))
        same(exchange(other, one, flags=TO_EOF), 0)
        assert sent(reader, 0, 9 * B) == short_now
        os.ftruncate(other, 3 * B)
        assert content(paths[1]) == short_now + bytes(3 * B - len(short))
        shown.close()
        stored.close()
        for fd in (one, other, reader, appender):
            os.close(fd)


class MapWhole:
    """Pages of a file by the system call, which unlike the module asks nobody for the size."""

    def __init__(self, fd, pages):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.len = pages * B
        self.at = self.libc.mmap(None, self.len, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        assert self.at not in (None, ctypes.c_void_p(-1).value)

    def page(self, n):
        return ctypes.string_at(self.at + n * B, B)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.libc.munmap(self.at, self.len)


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
    same(exchange(other, one, (1 << 63, 0), B), errno.EINVAL)
    same(exchange(other, one, (0, 0), (1 << 64) - B), errno.EINVAL)
    same(exchange(one, one, (0, B), 2 * B), errno.EINVAL)
    same(exchange(other, 999, length=B), errno.EBADF)
    same(exchange(other, -1, length=B), errno.EBADF)
    same(exchange(other, one, length=0), 0)
    for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_PATH):
        bad = os.open(paths[0], how)
        same(exchange(other, bad, length=B), errno.EBADF)
        if how != os.O_PATH:
            same(exchange(bad, other, length=B), errno.EBADF)
        os.close(bad)
    fcntl.fcntl(one, fcntl.F_SETFL, os.O_APPEND)
    same(exchange(other, one, length=B), errno.EBADF)
    fcntl.fcntl(one, fcntl.F_SETFL, 0)
    for path in (os.path.join(elsewhere, "foreign"), "/dev/shm/quayfs-exchange-%d" % os.getpid()):
        foreign = filled(path, b)
        same(exchange(other, foreign, length=B), errno.EXDEV)
        os.close(foreign)
        os.unlink(path)
    pipe = os.pipe()
    same(exchange(other, pipe[0], length=B), errno.EXDEV)
    fifo = os.path.join(directory, "fifo")
    os.mkfifo(fifo)
    same(exchange(other, os.open(fifo, os.O_RDWR), length=B), errno.EINVAL)
    same(exchange(other, os.open(directory, os.O_RDONLY), length=B), errno.EBADF)
    same(exchange(os.open(directory, os.O_RDONLY), one, length=B), errno.EBADF)
    os.close(other)
    assert [content(p) for p in paths] == [a, b]


def mapped(directory):
    """What was written to memory only goes along, and what is beside it stays."""
    paths, one, other = pair(directory, b"1" * 4 * B, b"2" * 4 * B)
    with mmap.mmap(one, 4 * B) as memory:
        memory[B : B + 3] = b"new"
        memory[3 * B : 3 * B + 3] = b"far"
        same(exchange(other, one, length=2 * B), 0)
        assert memory[:B] == b"2" * B, "the mapping shows what the file has become"
        assert content(paths[1])[B : B + 4] == b"new1"
        memory[:3] = b"own"
        assert memory[3 * B : 3 * B + 4] == b"far1"
    assert content(paths[0])[:4] == b"own2" and content(paths[1])[:4] == b"1111"
    assert content(paths[0])[3 * B : 3 * B + 4] == b"far1"


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
    with mmap.mmap(other, B) as memory:
        memory[7:8] = b"?"
        sample = start()
        memory[9:10] = b"?"
        same(commit(sample), errno.EBUSY)
        sample = start()
    same(commit(bytes(88)), errno.EINVAL)
    os.ftruncate(other, 2 * B)
    with mmap.mmap(other, 2 * B) as memory:
        # Outside of the range, too.
        sample = start()
        memory[B + 7 : B + 8] = b"?"
        same(commit(sample), errno.EBUSY)
    os.ftruncate(other, B)
    sample = start()
    # Not with the right only to read, or only write, or have a directory.
    for flags, path in ((os.O_RDONLY, paths[1]), (os.O_WRONLY, paths[1]), (os.O_RDONLY, directory)):
        fd = os.open(path, flags)
        same(answer(lambda: fcntl.ioctl(fd, START_COMMIT, bytes(88))), errno.EBADF)
        os.close(fd)
    os.utime(paths[0])
    same(commit(sample), 0)
    assert content(paths[0])[:10] == b"11111!1?1?"
    # What has capabilities loses them, which is no change by somebody else.
    os.setxattr(paths[1], "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
    sample = start()
    same(commit(sample), 0)
    assert os.listxattr(paths[1]) == []


def beside(directory):
    """Beside a process that writes all the time: what is put in place is in place of what was looked at."""
    paths, one, other = pair(directory, b"1" * B, b"2" * B)
    stop_writing, stop = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(stop)
        ours = os.open(paths[1], os.O_RDWR)
        n = 0
        while not select.select([stop_writing], [], [], 0.0007)[0]:
            n += 1
            os.pwrite(ours, b"w%07d" % n, 64)
        os._exit(0)
    done = failed = 0
    for turn in range(3000):
        if done >= 100 and failed >= 20:
            break
        sample = bytearray(fcntl.ioctl(other, START_COMMIT, bytes(88)))
        looked = os.pread(other, B, 0)
        if turn % 3 == 0:
            select.select([], [], [], 0.0005)
        new = looked[:64] + b"n%07d" % turn + looked[72:]
        os.pwrite(one, new, 0)
        args = struct.pack("=iIQQQQ", one, 0, 0, 0, B, 0)
        code = answer(lambda: fcntl.ioctl(other, COMMIT_RANGE, args + bytes(sample[40:])))
        if code:
            same(code, errno.EBUSY)
            assert os.pread(one, B, 0) == new
            failed += 1
        else:
            assert os.pread(one, B, 0) == looked, "somebody has written in between"
            done += 1
    assert done >= 20 and failed >= 5, (done, failed)
    os.close(stop)
    assert os.waitpid(pid, 0)[1] == 0


def privileges(directory):
    """Both files lose their privileges, unless it is refused."""
    paths, one, other = pair(directory, b"1" * B, b"#!/bin/sh\nexit 3\n".ljust(B))
    capability = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
    for path in paths:
        os.chmod(path, 0o6755)
        os.setxattr(path, "security.capability", capability)

    def by_another(want, *args):
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            # A process that changes its user may be looked at by root alone, which the daemon is.
            same(exchange(other, one, *args), want)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    def armed():
        return [(os.stat(p).st_mode & 0o7777, "security.capability" in os.listxattr(p)) for p in paths]

    by_another(errno.EINVAL, (1, 0), B)
    by_another(0, (0, 0), B, DRY_RUN)
    assert armed() == [(0o6755, True)] * 2
    by_another(0, (0, 0), B)
    assert armed() == [(0o755, False)] * 2, armed()
    os.close(one)
    assert subprocess.run([paths[0]]).returncode == 3


def replaced(directory):
    """While a number comes to stand for one file after the other, only those are exchanged that it stood for: never
    one that was open for reading only."""
    paths, one, other = pair(directory, b"1" * B, b"2" * B)
    guarded = os.path.join(directory, "guarded")
    filled(guarded, b"3" * B)
    reader = os.open(guarded, os.O_RDONLY)
    number = os.dup(one)
    stop = threading.Event()

    def change():
        while not stop.is_set():
            os.dup2(reader, number)
            os.dup2(one, number)

    thread = threading.Thread(target=change)
    thread.start()
    codes = set()
    while len(codes) < 2:
        codes |= {exchange(other, number, length=B) for _ in range(300)}
    stop.set()
    thread.join()
    assert codes == {0, errno.EBADF}, codes
    assert content(guarded) == b"3" * B
    assert {content(p)[:1] for p in paths} == {b"1", b"2"}


def crowd(directory):
    """Processes that exchange, write, read, append and map the same two files: each block is of one piece at the end,
    and nobody waits for ever."""
    blocks = 16
    paths, one, other = pair(directory, b"a" * B * blocks, b"b" * B * blocks)
    children = []
    for n in range(12):
        pid = os.fork()
        if pid == 0:
            rng = random.Random(n)
            ours = [os.open(p, os.O_RDWR) for p in paths]
            reader = [os.open(p, os.O_RDONLY) for p in paths]
            memory = [mmap.mmap(fd, B * blocks) for fd in ours]
            for i in range(100):
                step()
                first, second = rng.sample([0, 1], 2)
                at = rng.randrange(blocks - 4) * B
                if n < 6:
                    # Which look is in time to see what a descriptor is depends on the machine.
                    while (code := exchange(ours[first], ours[second], (at, at), 4 * B)) == errno.EBUSY:
                        time.sleep(0.001)
                    same(code, 0)
                elif n < 10:
                    os.pwrite(ours[first], bytes([97 + n]) * B, at)
                    seen = os.pread(ours[second], B, at)
                    assert len(seen) == B and len(set(seen) - {ord("m")}) <= 1, set(seen)
                    os.pread(reader[second], B * blocks, 0)
                else:
                    memory[first][at : at + B] = b"m" * B
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    for path in paths:
        assert os.stat(path).st_size == B * blocks
        seen = content(path)
        # A mapping stores byte by byte.
        for at in range(0, len(seen), B):
            assert len(set(seen[at : at + B]) - {ord("m")}) <= 1


def watched(directory):
    """Readers that have both files in the page cache all the time see each exchange when it has returned."""
    blocks = 4
    paths, one, other = pair(directory, b"a" * B * blocks, b"b" * B * blocks)
    readers = [os.open(p, os.O_RDONLY) for p in paths]
    shown = [mmap.mmap(fd, B * blocks, prot=mmap.PROT_READ) for fd in readers]
    stop_reading, stop = os.pipe()
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os.close(stop)
            ours = [os.open(p, os.O_RDONLY) for p in paths]
            while not select.select([stop_reading], [], [], 0)[0]:
                for n in range(50):
                    os.pread(ours[n % 2], blocks * B, 0)
            os._exit(0)
        children.append(pid)
    want = [b"a" * B * blocks, b"b" * B * blocks]
    for turn in range(800):
        step()
        at = B if turn % 2 else 0
        same(exchange(other, one, (at, at), 2 * B), 0)
        a, b = want
        want = [x[:at] + y[at : at + 2 * B] + x[at + 2 * B :] for x, y in ((a, b), (b, a))]
        for reader, memory, content_of in zip(readers, shown, want):
            assert memory[:] == content_of, turn
            assert os.pread(reader, blocks * B, 0) == content_of, turn
    os.close(stop)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0


def until_killed(directory):
    """Puts a new version of a file in place of the old one, again and again, and says which it is."""
    path, draft = (os.path.join(directory, name) for name in ("file", "draft"))
    fd, new = (os.open(p, os.O_RDWR | os.O_CREAT) for p in (path, draft))
    version = struct.unpack("=Q", os.pread(fd, 8, 0).ljust(8, b"\0"))[0]
    while True:
        version += 1
        os.ftruncate(new, 0)
        os.pwrite(new, struct.pack("=Q", version) * 512 * (1 + version % 7), 0)
        same(exchange(fd, new, flags=TO_EOF | DSYNC), 0)
        print(version, flush=True)


def one_version(directory, acknowledged):
    """After a crash it is one of them, from its begin to its end."""
    seen = content(os.path.join(directory, "file"))
    version = struct.unpack("=Q", seen[:8])[0]
    assert seen == struct.pack("=Q", version) * 512 * (1 + version % 7), version
    assert version >= int(acknowledged), (version, acknowledged)


def among_them(directory):
    """Whenever daemons die, ranges are exchanged once."""
    versions = [os.urandom(3 * B + 100), os.urandom(B + 7)]
    paths, one, other = pair(directory, *versions)
    readers = [os.open(p, os.O_RDONLY) for p in paths]

    def turned(_):
        same(exchange(other, one, flags=TO_EOF | DSYNC), 0)
        versions.reverse()
        for reader, path, want in zip(readers, paths, versions):
            assert os.pread(reader, 9 * B, 0) == want and content(path) == want

    among_deaths(directory, 300, turned)


def unoffered(directory):
    paths, one, other = pair(directory, b"1" * B, b"2" * B)
    same(exchange(other, one, length=B), errno.ENOTTY)
    same(answer(lambda: fcntl.ioctl(other, START_COMMIT, bytes(88))), errno.ENOTTY)
    same(answer(lambda: fcntl.ioctl(other, COMMIT_RANGE, bytes(88))), errno.ENOTTY)
    assert [content(p) for p in paths] == [b"1" * B, b"2" * B]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
