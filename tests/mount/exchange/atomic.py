"""Writes several times to a file as one, by the calls of F2FS, and asserts what each process sees, and when. WHAT DIR [...]"""

START, COMMIT, ABORT, FEATURES = 0xF501, 0xF502, 0xF505, 0x8004F50C


def sent_as(fd, offset, want):
    """Whether sendfile hands out that, and behind it, if the kernel has not asked for the size yet, zeros at most."""
    data = sent(fd, offset, 9 * B)
    return data[: len(want)] == want and not data[len(want) :].strip(b"\0")


OLD = b"1" * 3 * B
NEW = b"1" * (B - 1) + b"new" + b"1" * (B - 2) + b"2" * B + bytes(4 * B) + b"end"


def begin(fd):
    """A session after which OLD would be NEW."""
    fcntl.ioctl(fd, START)
    assert os.pwrite(fd, b"2" * B, 2 * B) == B
    assert os.pwrite(fd, b"new", B - 1) == 3
    assert os.pwrite(fd, b"end", 7 * B) == 3


def unseen(directory):
    """Nobody sees it, until all do at once."""
    path = os.path.join(directory, "file")
    fd = filled(path, OLD)
    assert struct.unpack("=I", fcntl.ioctl(fd, FEATURES, bytes(4)))[0] & 4
    reader, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
    shown = mmap.mmap(reader, 3 * B, prot=mmap.PROT_READ)
    assert os.pread(reader, 9 * B, 0) == OLD and shown[:] == OLD
    begin(fd)

    def old():
        for one in (fd, reader, writer):
            assert os.pread(one, 9 * B, 0) == OLD, one
            assert sent(one, 0, 9 * B) == OLD, one
        for one in (reader, writer):
            with mmap.mmap(one, 0, prot=mmap.PROT_READ) as m:
                assert m[:] == OLD
        assert shown[:] == OLD and content(path) == OLD and os.stat(path).st_size == len(OLD)
        assert os.fstat(fd).st_size == len(OLD)

    for turn in range(3):
        # Nor where nobody has asked for the size since.
        assert sent_as(reader, 2 * B, OLD[2 * B :])
        assert os.pread(reader, 9 * B, 2 * B) == OLD[2 * B :]
        old()
        begin(fd)
        os.fsync(fd)
    old()
    fcntl.ioctl(fd, COMMIT)
    # First readers that do not ask for the size.
    assert sent(reader, 7 * B, B) == b"end"
    assert shown[:] == NEW[: 3 * B]
    for one in (fd, reader, writer):
        assert os.pread(one, 9 * B, 0) == NEW, one
        assert sent(one, 0, 9 * B) == NEW, one
    assert content(path) == NEW and os.stat(path).st_size == len(NEW)
    same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.EINVAL)
    os.pwrite(fd, b"!", 0)
    assert content(path)[:2] == b"!1"


def given_up(directory):
    """What is given up never was: by the call, by the last close, by death."""
    path = os.path.join(directory, "file")
    fd = filled(path, OLD)
    other = os.open(path, os.O_RDONLY)

    def unchanged():
        assert sent_as(other, 2 * B, OLD[2 * B :])
        assert os.fstat(other).st_size == len(OLD) and os.stat(path).st_size == len(OLD)
        assert sent(other, 2 * B, 9 * B) == OLD[2 * B :]
        assert os.lseek(other, 0, os.SEEK_END) == len(OLD)
        assert content(path) == OLD

    begin(fd)
    fcntl.ioctl(fd, ABORT)
    unchanged()
    same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.EINVAL)
    fcntl.ioctl(fd, ABORT)
    for end in (lambda: os.close(fd), lambda: os.kill(os.getpid(), 9)):
        pid = os.fork()
        if pid == 0:
            fd = os.open(path, os.O_RDWR)
            begin(fd)
            end()
            os._exit(0)
        os.waitpid(pid, 0)
        unchanged()
    # A session is that of the open file, not of a descriptor or a process.
    copy = os.dup(fd)
    begin(fd)
    os.close(fd)
    unchanged()
    pid = os.fork()
    if pid == 0:
        fcntl.ioctl(copy, COMMIT)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert content(path) == NEW


def refused(directory):
    path = os.path.join(directory, "file")
    fd = filled(path, OLD)
    reader = os.open(path, os.O_RDONLY)
    same(answer(lambda: fcntl.ioctl(reader, START)), errno.EBADF)
    same(answer(lambda: fcntl.ioctl(os.open(directory, os.O_RDONLY), START)), errno.EINVAL)
    same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.EINVAL)
    same(answer(lambda: fcntl.ioctl(reader, COMMIT)), errno.EINVAL)
    fcntl.ioctl(fd, START)
    fcntl.ioctl(fd, START)
    # More than a record can hold: that write is refused, the session goes on.
    for block in range(2000):
        code = answer(lambda: os.pwrite(fd, b"x" * B, block * 2 * B))
        if code:
            break
    same(code, errno.EFBIG)
    assert block >= 16, block
    same(answer(lambda: os.pwrite(fd, b"x" * 4 * B * B, 0)), errno.EFBIG)
    assert os.pwrite(fd, b"y" * B, 0) == B
    assert content(path) == OLD
    fcntl.ioctl(fd, COMMIT)
    seen = content(path)
    assert seen[:B] == b"y" * B and seen[B : 2 * B] == OLD[B : 2 * B]
    for at in range(1, block):
        assert seen[2 * at * B : (2 * at + 1) * B] == b"x" * B, at


def beside(directory):
    """Others go on writing to the file; what is committed lies over what is there then."""
    path = os.path.join(directory, "file")
    fd = filled(path, OLD)
    other = os.open(path, os.O_RDWR)
    appender = os.open(path, os.O_WRONLY | os.O_APPEND)
    second = os.open(path, os.O_RDWR)
    begin(fd)
    fcntl.ioctl(second, START)
    os.pwrite(second, b"second", 20)
    assert os.pwrite(other, b"other", 10) == 5
    # The kernel believes in an end that nobody has committed.
    assert os.write(appender, b"appended") == 8
    assert content(path) == OLD[:10] + b"other" + OLD[15:] + b"appended"
    os.ftruncate(other, 2 * B)
    assert os.write(appender, b"again") == 5
    assert content(path) == OLD[:10] + b"other" + OLD[15 : 2 * B] + b"again"
    fcntl.ioctl(second, COMMIT)
    now = OLD[:10] + b"other" + OLD[15:20] + b"second" + OLD[26 : 2 * B] + b"again"
    assert content(path) == now
    fcntl.ioctl(fd, COMMIT)
    now = now[:20] + now[20 : B - 1] + b"new" + now[B + 2 : 2 * B] + b"2" * B + bytes(4 * B) + b"end"
    assert content(path) == now
    # What is appended in a session goes to the end that the file has there.
    fcntl.ioctl(appender, START)
    assert os.write(appender, b"one") == 3 and os.write(appender, b"two") == 3
    assert content(path) == now
    fcntl.ioctl(appender, COMMIT)
    assert content(path) == now + b"onetwo"


def appended(directory):
    """An append beside a session that the kernel takes for written: a process with the end of the file in its page cache sees
    it, soon."""
    path = os.path.join(directory, "file")
    fd = filled(path, b"0123456789")
    reader = os.open(path, os.O_RDONLY)
    assert os.pread(reader, B, 0) == b"0123456789"
    begin(fd)
    appender = os.open(path, os.O_WRONLY | os.O_APPEND)
    assert os.write(appender, b"hello") == 5
    while os.pread(reader, B, 0)[:15] != b"0123456789hello":
        time.sleep(0.001)
    fcntl.ioctl(fd, ABORT)
    assert os.stat(path).st_size == 15
    assert os.pread(reader, B, 0) == content(path) == b"0123456789hello"


def mapped(directory):
    """Stores to shared memory stay what they are: pages of their own, within the file."""
    path = os.path.join(directory, "file")
    fd = filled(path, OLD[: B + 100])
    other = os.open(path, os.O_RDWR)
    with mmap.mmap(other, B + 100) as memory:
        memory[5:8] = b"abc"
        assert memory[B + 50] == ord("1")
        fcntl.ioctl(fd, START)
        os.pwrite(fd, b"kept", 100)
        os.pwrite(fd, b"end", 3 * B)
        memory[10:13] = b"def"
        memory[B + 50 : B + 53] = b"ghi"
        # The kernel writes whole pages, up to the end that it believes in.
        memory.flush()
        assert os.stat(path).st_size == B + 100
        want = bytearray(OLD[: B + 100])
        want[5:8], want[10:13], want[B + 50 : B + 53] = b"abc", b"def", b"ghi"
        assert content(path) == want
        memory[15:18] = b"jkl"
        fcntl.ioctl(fd, COMMIT)
        want[15:18], want[100:104] = b"jkl", b"kept"
        want += bytes(2 * B - 100) + b"end"
        assert memory[:] == want[: B + 100], "the mapping shows what is committed"
        assert content(path) == want
        memory[20:23] = b"mno"
        want[20:23] = b"mno"
    assert content(path) == want


# Over rings a commit does not wait for the page cache where too many do already.
LATE = os.environ.get("QUAYFS_TEST_TRANSPORT") == "uring"


def reads(fd, count, offset, want):
    """What a cached reader sees: that, at once where nobody else commits."""
    while (seen := os.pread(fd, count, offset)) != want:
        assert LATE, (seen[:8], want[:8], offset)


def watched(directory):
    """Readers that have the file in the page cache all the time see each commit when it has returned."""
    path = os.path.join(directory, "file")
    fd = filled(path, stamped(4 * B, 0))
    reader = os.open(path, os.O_RDONLY)
    shown = mmap.mmap(reader, 4 * B, prot=mmap.PROT_READ)
    stop_reading, stop = os.pipe()
    children = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os.close(stop)
            ours = os.open(path, os.O_RDONLY)
            while not select.select([stop_reading], [], [], 0)[0]:
                for _ in range(50):
                    os.pread(ours, 4 * B, 0)
            os._exit(0)
        children.append(pid)
    for stamp in range(1, 1500):
        step()
        fcntl.ioctl(fd, START)
        os.pwrite(fd, stamped(B, stamp), 0)
        os.pwrite(fd, stamped(B, stamp), 2 * B)
        # One at a time waits for the page cache whatever the transport.
        fcntl.ioctl(fd, COMMIT)
        for at in (0, 2 * B):
            assert shown[at : at + B] == stamped(B, stamp), stamp
            assert os.pread(reader, B, at) == stamped(B, stamp), stamp
    os.close(stop)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    assert content(path) == b"".join(stamped(B, s) for s in (stamp, 0, stamp, 0))


def small(directory):
    """As many writes as there are bytes, if they are beside one another."""
    path = os.path.join(directory, "file")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.ioctl(fd, START)
    for at in range(2 * B):
        assert os.pwrite(fd, b"%d" % (at % 10), at) == 1
    assert content(path) == b""
    fcntl.ioctl(fd, COMMIT)
    assert content(path) == b"".join(b"%d" % (at % 10) for at in range(2 * B))


def shared(directory):
    """A process that takes all it can get leaves something for others."""
    os.chmod(directory, 0o777)
    begun = []

    def begin(name):
        fd = os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT)
        fcntl.ioctl(fd, START)
        begun.append(fd)
        return fd

    def fill(name):
        try:
            fd, block = begin(name), 0
        except OSError as e:
            same(e.errno, errno.ENOMEM)
            return 0
        while not answer(lambda: os.pwrite(fd, b"x", block * B)):
            block += 1
        return block

    files = 0
    while fill(f"root{files}"):
        files += 1
    assert files > 16, files
    os.setegid(65534)
    os.seteuid(65534)
    assert fill("nobody") > 16
    os.seteuid(0)
    os.setegid(0)
    assert fill("once-more") == 0
    for fd in begun:
        os.close(fd)
    # What is given up when the file is closed may take a moment.
    while not fill("again"):
        time.sleep(0.01)


def privileges(directory):
    """A write takes privileges away, but not before the file has become something else."""
    path = os.path.join(directory, "file")
    script = b"#!/bin/sh\nexit %d\n"
    fd = filled(path, script % 3)
    # cap_net_raw, permitted and effective.
    capability = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)

    def arm():
        os.chmod(path, 0o6755)
        os.setxattr(path, "security.capability", capability)

    def by_another(*calls):
        pid = os.fork()
        if pid == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            for call in calls:
                call()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    def armed():
        return os.stat(path).st_mode & 0o7777, "security.capability" in os.listxattr(path)

    arm()
    by_another(lambda: fcntl.ioctl(fd, START), lambda: os.pwrite(fd, script % 4, 0))
    assert armed() == (0o6755, True)
    same(answer(lambda: subprocess.run([path])), errno.ETXTBSY)
    assert content(path) == script % 3
    by_another(lambda: fcntl.ioctl(fd, ABORT))
    assert armed() == (0o6755, True)
    by_another(lambda: fcntl.ioctl(fd, START), lambda: os.pwrite(fd, script % 4, 0))
    os.close(fd)
    assert subprocess.run([path]).returncode == 3 and armed() == (0o6755, True)
    fd = os.open(path, os.O_RDWR)
    by_another(
        lambda: fcntl.ioctl(fd, START), lambda: os.pwrite(fd, script % 5, 0), lambda: fcntl.ioctl(fd, COMMIT)
    )
    assert armed() == (0o755, False), armed()
    os.close(fd)
    assert subprocess.run([path]).returncode == 5


def stamped(size, stamp):
    return struct.pack("=Q", stamp) * (size // 8)


SLOTS, APART = 4, 5


def many(directory):
    """Threads, each with a session of its own on a file that they share: what one commits is there as a whole,
    what it gives up is nowhere, and nobody waits for ever."""
    path = os.path.join(directory, "file")
    threads, rounds = 32, 12
    region = SLOTS * APART * B
    fd = filled(path, b"")
    os.ftruncate(fd, threads * region)
    last = [0] * threads
    done, wrong = threading.Event(), []

    def guarded(work):
        def run(*args):
            try:
                work(*args)
            except BaseException as e:
                wrong.append(repr(e))
                raise

        return run

    @guarded
    def write(n):
        rng = random.Random(n)
        mine = os.open(path, os.O_RDWR)
        reader = os.open(path, os.O_RDONLY)
        for stamp in range(1, rounds + 1):
            step()
            stamp = n << 32 | stamp
            fcntl.ioctl(mine, START)
            for slot in range(SLOTS):
                at = n * region + slot * APART * B
                assert os.pwrite(mine, stamped(2 * B, stamp), at) == 2 * B
            if rng.random() < 0.3:
                fcntl.ioctl(mine, ABORT)
            else:
                fcntl.ioctl(mine, COMMIT)
                last[n] = stamp
            for slot in range(SLOTS):
                at = n * region + slot * APART * B
                assert os.pread(mine, 2 * B, at) == stamped(2 * B, last[n]), (n, stamp, slot)
                reads(reader, 2 * B, at, stamped(2 * B, last[n]))
        os.close(mine)
        os.close(reader)

    @guarded
    def look(way):
        ours = os.open(path, way)
        rng = random.Random(way)
        while not done.is_set():
            n, slot = rng.randrange(threads), rng.randrange(SLOTS)
            seen = os.pread(ours, 2 * B, n * region + slot * APART * B)
            stamps = set(struct.unpack(f"={len(seen) // 8}Q", seen))
            # Through the page cache it is page by page.
            assert len(stamps) == 1 if way == os.O_RDWR else len(stamps) <= 2, stamps
            assert all(s == 0 or s >> 32 == n for s in stamps)

    lookers = [threading.Thread(target=look, args=(way,)) for way in (os.O_RDWR, os.O_RDONLY)]
    writers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
    for t in lookers + writers:
        t.start()
    for t in writers:
        t.join()
    done.set()
    for t in lookers:
        t.join()
    assert not wrong, wrong
    assert any(last)
    for n in range(threads):
        for slot in range(SLOTS):
            at = n * region + slot * APART * B
            assert os.pread(fd, 2 * B, at) == stamped(2 * B, last[n]), n


def until_killed(directory):
    """Commits one transaction after the other, each with a stamp on all of its blocks, and says which are done."""
    path = os.path.join(directory, "file")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    stamp = struct.unpack("=Q", os.pread(fd, 8, 0).ljust(8, b"\0"))[0]
    while True:
        stamp += 1
        fcntl.ioctl(fd, START)
        for slot in range(SLOTS):
            os.pwrite(fd, stamped(B, stamp), slot * APART * B)
        if stamp % 5 == 0:
            fcntl.ioctl(fd, ABORT)
            continue
        fcntl.ioctl(fd, COMMIT)
        print(stamp, flush=True)


def whole(directory, acknowledged):
    """After a crash all of a transaction is there or none, and nothing that was acknowledged is missing."""
    seen = content(os.path.join(directory, "file"))
    stamps = set()
    for slot in range(SLOTS):
        at = slot * APART * B
        stamps |= set(struct.unpack("=512Q", seen[at : at + B]))
    assert len(stamps) == 1, stamps
    stamp = stamps.pop()
    assert stamp >= int(acknowledged), (stamp, acknowledged)
    assert stamp % 5, "given up"


def outlived(directory):
    """What a daemon kept that has died can only be given up; nothing else notices."""
    path = os.path.join(directory, "file")
    fd = filled(path, OLD)
    other = os.open(path, os.O_RDWR)
    begin(fd)
    kill_daemon(directory)
    for _ in range(3):
        same(answer(lambda: os.pwrite(fd, b"x", 0)), errno.ESTALE)
        same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.ESTALE)
        same(answer(lambda: fcntl.ioctl(fd, START)), errno.ESTALE)
        late = os.open(path, os.O_RDWR)
        for one in (other, late):
            assert os.pwrite(one, OLD[:B], 0) == B
            begin(one)
            fcntl.ioctl(one, ABORT)
        assert content(path) == OLD and os.fstat(fd).st_size == len(OLD)
        kill_daemon(directory)
    fcntl.ioctl(fd, ABORT)
    same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.EINVAL)
    assert os.pwrite(fd, OLD[:B], 0) == B
    begin(fd)
    fcntl.ioctl(fd, COMMIT)
    assert content(path) == NEW


def among_them(directory):
    """Whenever daemons die, a commit has happened or fails."""
    path = os.path.join(directory, "file")
    blocks = (0, 3 * B, 9 * B)
    fd = filled(path, bytes(10 * B))
    now, lost = [bytes(B)], []

    def transaction(turn):
        new = struct.pack("=Q", turn + 1) * (B // 8)
        try:
            fcntl.ioctl(fd, START)
            for at in blocks:
                assert os.pwrite(fd, new, at) == B
            fcntl.ioctl(fd, COMMIT)
            now[0] = new
        except OSError as e:
            same(e.errno, errno.ESTALE)
            lost.append(turn)
            fcntl.ioctl(fd, ABORT)
        seen = content(path)
        assert all(seen[at : at + B] == now[0] for at in blocks), (turn, lost)

    among_deaths(directory, 300, transaction)


def nothing(directory):
    """A commit of nothing fails only if its session is lost, whenever daemons die: it takes as long as a sync."""
    path = os.path.join(directory, "file")
    fd = filled(path, bytes(B))
    other = os.open(path, os.O_RDWR)

    def transaction(turn):
        assert os.pwrite(other, struct.pack("=Q", turn) * (B // 8), 0) == B
        try:
            fcntl.ioctl(fd, START)
            fcntl.ioctl(fd, COMMIT)
        except OSError as e:
            same(e.errno, errno.ESTALE)
            fcntl.ioctl(fd, ABORT)
        same(answer(lambda: fcntl.ioctl(fd, COMMIT)), errno.EINVAL)

    among_deaths(directory, 300, transaction)


def appended_once(directory):
    """Appends of two records each, since they do not begin where a block does, come once, whenever daemons die."""
    path = os.path.join(directory, "file")
    fd = filled(path, b"begun", os.O_APPEND)

    def append(turn):
        more = struct.pack("=Q", turn) * (1 << 17)
        assert os.write(fd, more) == len(more)
        size = len(b"begun") + len(more)
        assert os.fstat(fd).st_size == size, (turn, os.fstat(fd).st_size, size)
        assert content(path) == b"begun" + more, turn
        os.ftruncate(fd, len(b"begun"))

    among_deaths(directory, 100, append)


def unoffered(directory):
    fd = filled(os.path.join(directory, "file"), b"1")
    for call in (FEATURES, START, COMMIT, ABORT):
        same(answer(lambda: fcntl.ioctl(fd, call, bytes(4) if call == FEATURES else 0)), errno.ENOTTY)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
