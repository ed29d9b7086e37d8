"""Every kind of call that changes a tree, by several processes, each of which knows what its directory has to hold.

No call may fail that has no reason to, and none may be carried out twice: a second `mkdir` would say EEXIST, a second
`unlink` ENOENT, a second append would show in the content, a second exchange would take the first one back.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, NOREPLACE, EXCHANGE, WHITEOUT = -100, 1, 2, 4
AT_SYMLINK_FOLLOW = 0x400
PUNCH, KEEP = 2, 1
PAGE = 4096
# Bytes of the file that is mapped all the time.
MAPPED = 64 * PAGE
# Names of the directory that is listed, more than one request can tell.
LISTED = {f"{n:03}-{'x' * 100}" for n in range(400)}
# Several writes as one, as F2FS has them, and the contents of two files exchanged, as XFS has that.
START, COMMIT, ABORT, TRADE, TO_EOF = 0xF501, 0xF502, 0xF505, 0x40285881, 1


def check(result):
    if result < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return result


def renameat2(old, new, flags):
    check(libc.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags))


def fallocate(fd, mode, offset, length):
    check(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


class File:
    """What a file has to be."""

    def __init__(self, content=b"", mode=0o644):
        self.content = bytearray(content)
        self.mode = mode
        self.xattrs = {}
        self.links = 1


class Hammer:
    def __init__(self, root, seed):
        self.root = root
        self.random = random.Random(seed)
        self.files = {}
        self.dirs = set()
        self.symlinks = {}
        self.fifos = set()
        self.held = []
        self.next = 0
        self.calls = 0
        os.mkdir(root)
        # Open and mapped from the first call to the last one, without a name.
        self.shared = os.open(root, os.O_TMPFILE | os.O_RDWR, 0o644)
        os.ftruncate(self.shared, MAPPED)
        self.mapping = mmap.mmap(self.shared, MAPPED)
        self.mapped = bytearray(MAPPED)
        self.aligned = mmap.mmap(-1, 16 * PAGE)
        os.mkdir(self.path("listed"))
        for name in LISTED:
            os.close(os.open(self.path(f"listed/{name}"), os.O_CREAT | os.O_EXCL, 0o600))
        try:
            fcntl.ioctl(self.shared, START)
            fcntl.ioctl(self.shared, ABORT)
            self.has_atomic = True
        except OSError as e:
            assert e.errno in (errno.ENOTTY, errno.ESTALE), e
            self.has_atomic = e.errno == errno.ESTALE

    def path(self, name):
        return os.path.join(self.root, name)

    def fresh(self, what):
        self.next += 1
        return f"{what}{self.next}"

    def some(self, names):
        return self.random.choice(sorted(names)) if names else None

    def bytes(self, most):
        return self.random.randbytes(self.random.randint(1, most))

    def step(self):
        getattr(self, self.random.choice(KINDS))()
        self.calls += 1
        if self.calls % 200 == 0:
            self.verify()

    def create(self):
        name = self.fresh("f")
        fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        content = self.bytes(9000)
        assert os.write(fd, content) == len(content)
        os.close(fd)
        self.files[name] = File(content)

    def mkdir(self):
        name = self.fresh("d")
        os.mkdir(self.path(name))
        self.dirs.add(name)

    def rmdir(self):
        name = self.some(self.dirs)
        if name:
            os.rmdir(self.path(name))
            self.dirs.remove(name)

    def mkfifo(self):
        name = self.fresh("p")
        os.mkfifo(self.path(name))
        self.fifos.add(name)

    def socket(self):
        name = self.fresh("p")
        os.mknod(self.path(name), stat.S_IFSOCK | 0o600)
        self.fifos.add(name)

    def whiteout(self):
        """A device comes to where a file was, which goes then."""
        name, new = self.some(self.files), self.fresh("w")
        if name and os.getuid() == 0:
            renameat2(self.path(name), self.path(new), WHITEOUT)
            self.files[new] = self.files.pop(name)
            found = os.lstat(self.path(name))
            assert stat.S_ISCHR(found.st_mode) and found.st_rdev == 0, found
            os.unlink(self.path(name))

    def chown(self):
        name = self.some(self.files)
        if name and os.getuid() == 0:
            who = self.random.randint(1, 5)
            os.chown(self.path(name), who, who + 10)
            found = os.stat(self.path(name))
            assert (found.st_uid, found.st_gid) == (who, who + 10), found

    def list(self):
        with os.scandir(self.path("listed")) as entries:
            found = [entry.name for entry in entries]
        assert len(found) == len(LISTED) and set(found) == LISTED, "a name is missing, or there twice"

    def commit(self):
        """Several writes as one: all of them, or none and no session any more."""
        name = self.some(self.files) if self.has_atomic else None
        if not name:
            return
        file = self.files[name]
        fd, new = os.open(self.path(name), os.O_RDWR), bytearray(file.content)
        try:
            fcntl.ioctl(fd, START)
            for _ in range(self.random.randint(0, 4)):
                content, offset = self.bytes(3 * PAGE), self.random.randint(0, len(new) + PAGE)
                assert os.pwrite(fd, content, offset) == len(content)
                new.extend(bytes(max(0, offset - len(new))))
                new[offset : offset + len(content)] = content
            fcntl.ioctl(fd, COMMIT)
            file.content = new
        except OSError as e:
            # What is not committed is lost with its daemon.
            if e.errno != errno.ESTALE:
                raise
            fcntl.ioctl(fd, ABORT)
        os.close(fd)

    def trade(self):
        one, other = self.some(self.files), self.some(self.files)
        if not self.has_atomic or not one or self.files[one] is self.files[other]:
            return
        a, b = (os.open(self.path(name), os.O_RDWR) for name in (one, other))
        fcntl.ioctl(b, TRADE, struct.pack("=iIQQQQ", a, 0, 0, 0, 0, TO_EOF))
        one, other = self.files[one], self.files[other]
        one.content, other.content = other.content, one.content
        os.close(a)
        os.close(b)

    def symlink(self):
        name, target = self.fresh("s"), "x" * self.random.randint(1, 300)
        os.symlink(target, self.path(name))
        self.symlinks[name] = target

    def link(self):
        name, new = self.some(self.files), self.fresh("l")
        if name:
            os.link(self.path(name), self.path(new))
            self.files[new] = self.files[name]
            self.files[name].links += 1

    def unlink(self):
        if len(self.files) < 20:
            return
        name = self.some(self.files)
        if self.random.random() < 0.3:
            # It lives on without a name.
            self.held.append((os.open(self.path(name), os.O_RDWR), self.files[name]))
        os.unlink(self.path(name))
        self.files.pop(name).links -= 1
        if len(self.held) > 5:
            self.release()

    def release(self):
        fd, file = self.held.pop(self.random.randrange(len(self.held)))
        self.compare(fd, file)
        os.close(fd)

    def tmpfile(self):
        fd = os.open(self.root, os.O_TMPFILE | os.O_RDWR, 0o644)
        content = self.bytes(5000)
        assert os.write(fd, content) == len(content)
        file = File(content)
        if self.random.random() < 0.5:
            name = self.fresh("t")
            source = f"/proc/self/fd/{fd}".encode()
            check(libc.linkat(AT_FDCWD, source, AT_FDCWD, self.path(name).encode(), AT_SYMLINK_FOLLOW))
            self.files[name] = file
            os.close(fd)
        else:
            file.links = 0
            self.held.append((fd, file))

    def rename(self):
        name, new = self.some(self.files), self.fresh("r")
        if name:
            renameat2(self.path(name), self.path(new), NOREPLACE)
            self.files[new] = self.files.pop(name)

    def replace(self):
        name, new = self.some(self.files), self.some(self.files)
        if name and self.files[name] is not self.files[new]:
            os.rename(self.path(name), self.path(new))
            self.files[new].links -= 1
            self.files[new] = self.files.pop(name)

    def exchange(self):
        name, other = self.some(self.files), self.some(self.files)
        if name and name != other:
            renameat2(self.path(name), self.path(other), EXCHANGE)
            self.files[name], self.files[other] = self.files[other], self.files[name]

    def opened(self, flags=os.O_RDWR):
        """A file with a name or one without."""
        if self.held and self.random.random() < 0.2:
            fd, file = self.random.choice(self.held)
            return os.dup(fd), file
        name = self.some(self.files)
        if not name:
            return None, None
        return os.open(self.path(name), flags), self.files[name]

    def write(self):
        fd, file = self.opened()
        if file is None:
            return
        self.put(fd, file, self.random.randint(0, len(file.content) + 3000), self.bytes(20000))

    def large(self):
        """So much that it is answered before the data device has it."""
        fd, file = self.opened()
        if file is None:
            return
        content = self.random.randbytes(self.random.randint(1, 6) << 17)
        self.put(fd, file, len(file.content) if len(file.content) < 1 << 20 else 0, content)

    def put(self, fd, file, offset, content, write=None):
        done = write() if write else os.pwrite(fd, content, offset)
        assert done == len(content), done
        if len(file.content) < offset:
            file.content.extend(bytes(offset - len(file.content)))
        file.content[offset : offset + len(content)] = content
        if self.random.random() < 0.2:
            os.fsync(fd)
        os.close(fd)

    def direct(self):
        """Past the page cache."""
        fd, file = self.opened(os.O_RDWR | os.O_DIRECT)
        if file is None:
            return
        length = self.random.randint(1, 16) * PAGE
        content = self.random.randbytes(length)
        self.aligned[:length] = content
        offset = self.random.randint(0, len(file.content) // PAGE) * PAGE
        with memoryview(self.aligned) as buffer:
            self.put(fd, file, offset, content, lambda: os.pwritev(fd, [buffer[:length]], offset))

    def map(self):
        start = self.random.randrange(MAPPED)
        content = self.random.randbytes(min(self.random.randint(1, 3 * PAGE), MAPPED - start))
        end = start + len(content)
        self.mapping[start:end] = content
        self.mapped[start:end] = content
        what = self.random.random()
        if what < 0.3:
            self.mapping.flush()
        if what < 0.2:
            # What is read now the daemon has to bring.
            self.mapping.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self.shared, 0, 0, os.POSIX_FADV_DONTNEED)
        got = os.pread(self.shared, MAPPED, 0) if what < 0.5 else self.mapping[:]
        assert got == self.mapped, "what is mapped differs"

    def append(self):
        name = self.some(self.files)
        if name:
            fd = os.open(self.path(name), os.O_WRONLY | os.O_APPEND)
            for _ in range(5):
                # Some take two records, since they do not begin where a block does.
                content = self.random.randbytes(1 << 20) if self.random.random() < 0.02 else self.bytes(300)
                assert os.write(fd, content) == len(content)
                self.files[name].content += content
            os.close(fd)

    def truncate(self):
        fd, file = self.opened()
        if file is None:
            return
        size = self.random.randint(0, len(file.content) + 2000)
        os.ftruncate(fd, size)
        file.content[size:] = b""
        file.content.extend(bytes(size - len(file.content)))
        os.close(fd)

    def chmod(self):
        name = self.some(self.files)
        if name:
            mode = self.random.choice([0o600, 0o644, 0o755, 0o640])
            os.chmod(self.path(name), mode)
            self.files[name].mode = mode

    def utime(self):
        name = self.some(self.files)
        if name:
            ns = self.random.randint(0, 10**18)
            os.utime(self.path(name), ns=(ns, ns))
            assert os.stat(self.path(name)).st_mtime_ns == ns

    def setxattr(self):
        name = self.some(self.files)
        if name:
            xattrs = self.files[name].xattrs
            key, value = f"user.{self.random.randint(0, 5)}", self.bytes(200)
            flag = os.XATTR_REPLACE if key in xattrs else os.XATTR_CREATE
            os.setxattr(self.path(name), key, value, flag)
            xattrs[key] = value

    def removexattr(self):
        name = self.some(self.files)
        if name and self.files[name].xattrs:
            key = self.some(self.files[name].xattrs)
            os.removexattr(self.path(name), key)
            del self.files[name].xattrs[key]

    def allocate(self):
        fd, file = self.opened()
        if file is None:
            return
        size = len(file.content)
        if self.random.random() < 0.5 and size > 1:
            start = self.random.randrange(size - 1)
            end = self.random.randint(start + 1, size)
            fallocate(fd, PUNCH | KEEP, start, end - start)
            file.content[start:end] = bytes(end - start)
        else:
            more = self.random.randint(1, 10000)
            fallocate(fd, 0, size, more)
            file.content.extend(bytes(more))
        os.close(fd)

    def copy(self):
        one, other = self.some(self.files), self.some(self.files)
        if not one or self.files[one] is self.files[other] or not self.files[one].content:
            return
        source, target = self.files[one].content, self.files[other].content
        a, b = os.open(self.path(one), os.O_RDONLY), os.open(self.path(other), os.O_WRONLY)
        length = self.random.randint(1, len(source))
        done = 0
        while done < length:
            done += os.copy_file_range(a, b, length - done, done, done)
        target[:length] = source[:length]
        os.close(a)
        os.close(b)

    def read(self):
        name = self.some(self.files)
        if name:
            fd = os.open(self.path(name), os.O_RDONLY)
            self.compare(fd, self.files[name])
            os.close(fd)

    def compare(self, fd, file):
        found = os.fstat(fd)
        size = len(file.content)
        assert found.st_size == size, (found.st_size, size)
        assert stat.S_IMODE(found.st_mode) == file.mode, oct(found.st_mode)
        assert found.st_nlink == file.links, (found.st_nlink, file.links)
        content = os.pread(fd, size + 1, 0)
        if content != file.content:
            at = next(i for i, (a, b) in enumerate(zip(content, file.content)) if a != b)
            raise AssertionError(f"content differs at {at} of {size}")

    def verify(self):
        found = set(os.listdir(self.root))
        expected = set(self.files) | self.dirs | set(self.symlinks) | self.fifos | {"listed"}
        assert found == expected, (found - expected, expected - found)
        for name, file in self.files.items():
            fd = os.open(self.path(name), os.O_RDONLY)
            self.compare(fd, file)
            os.close(fd)
            xattrs = {k: os.getxattr(self.path(name), k) for k in os.listxattr(self.path(name))}
            assert xattrs == file.xattrs, (xattrs, file.xattrs)
        for name, target in self.symlinks.items():
            assert os.readlink(self.path(name)) == target
        for name in self.dirs:
            assert os.listdir(self.path(name)) == []
        for fd, file in self.held:
            self.compare(fd, file)
        assert self.mapping[:] == os.pread(self.shared, MAPPED, 0) == self.mapped, "what is mapped differs"
        # Not more than a step can look through.
        for names, remove in [(self.symlinks, self.drop_symlink), (self.fifos, self.drop_fifo)]:
            for name in sorted(names)[20:]:
                remove(name)

    def drop_symlink(self, name):
        os.unlink(self.path(name))
        del self.symlinks[name]

    def drop_fifo(self, name):
        os.unlink(self.path(name))
        self.fifos.remove(name)


KINDS = [
    kind
    for kind in (
        "create mkdir rmdir mkfifo symlink link unlink unlink tmpfile rename replace exchange write write append append large direct map "
        "socket whiteout chown list commit trade "
        "truncate chmod utime setxattr removexattr allocate copy read"
    ).split()
]


def main():
    root, seed, until = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    hammer = Hammer(root, seed)
    kind = None
    try:
        while not os.path.exists(until):
            state = hammer.random.getstate()
            hammer.step()
        hammer.verify()
    except (OSError, AssertionError) as e:
        hammer.random.setstate(state)
        kind = hammer.random.choice(KINDS)
        name = errno.errorcode.get(e.errno, e.errno) if isinstance(e, OSError) else "content"
        print(f"{root}: call {hammer.calls}, {kind}: {name}: {e}", flush=True)
        raise
    print(hammer.calls, flush=True)


main()
