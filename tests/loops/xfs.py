"""Writes to XFS on a loop device on a file of a mount, and unmounts it, time after time: MNT HOME ROUNDS on|off.

After each time xfs_repair finds nothing, neither through the device nor through the page cache of the file, and the page
cache has what the daemon has. To be run in a mount namespace of its own: umount(8) returns while a namespace that somebody
else has made meanwhile still has the file system, whose log is not empty then.
"""

import mmap
import os
import random
import subprocess
import sys
import threading

SIZE = 320 << 20
CHUNK = 1 << 20


def must(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}: {done.stdout}"
    return done.stdout.strip()


def churn(directory, seed):
    """Files of many sizes, written, synced, cut, renamed and removed, with attributes."""
    rng = random.Random(seed)
    os.mkdir(directory)
    names = []
    for i in range(100):
        name = f"{directory}/{i}" + "x" * rng.randrange(60)
        with open(name, "wb") as f:
            f.write(rng.randbytes(rng.choice([0, 100, 4096, 5000, 70_000, 200_000])))
            if rng.random() < 0.15:
                f.flush()
                os.fsync(f.fileno())
        names.append(name)
        what, at = rng.random(), rng.randrange(len(names))
        if what < 0.2:
            os.unlink(names.pop(at))
        elif what < 0.3:
            os.rename(names[at], names[at] + "-")
            names[at] += "-"
        elif what < 0.4:
            os.truncate(names[at], rng.randrange(100_000))
        elif what < 0.45:
            os.setxattr(names[at], "user.a", rng.randbytes(rng.choice([10, 300, 3000])))


def work(directory, seed):
    threads = [threading.Thread(target=churn, args=(f"{directory}/{seed}-{n}", f"{seed}-{n}")) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if seed > 1:
        must("rm", "-r", *(f"{directory}/{seed - 1}-{n}" for n in range(3)))


def stale(image):
    """Pages of the file that the kernel remembers and the daemon does not have."""
    cached, direct = os.open(image, os.O_RDONLY), os.open(image, os.O_RDONLY | os.O_DIRECT)
    memory, wrong = mmap.mmap(-1, CHUNK), []
    for at in range(0, SIZE, CHUNK):
        assert os.preadv(direct, [memory], at) == CHUNK
        seen = os.pread(cached, CHUNK, at)
        if seen != memory[:]:
            wrong += [at + p for p in range(0, CHUNK, 4096) if seen[p : p + 4096] != memory[p : p + 4096]]
    os.close(cached)
    os.close(direct)
    return wrong


def main():
    mnt, home, rounds, direct = sys.argv[1:5]
    image, tree = f"{mnt}/image", f"{home}/xfs"
    os.mkdir(tree)
    with open(image, "wb") as f:
        f.truncate(SIZE)
    must("mkfs.xfs", "-q", image)
    for seed in range(1, int(rounds) + 1):
        device = must("losetup", "--find", "--show", f"--direct-io={direct}", image)
        try:
            with open(f"/sys/block/{os.path.basename(device)}/loop/dio", encoding="ascii") as f:
                assert f.read().strip() == str(int(direct == "on"))
            # The last user of the device may have left it write-protected.
            must("blockdev", "--setrw", device)
            must("mount", device, tree)
            try:
                work(tree, seed)
            finally:
                must("umount", tree)
            must("xfs_repair", "-n", device)
        finally:
            must("losetup", "--detach", device)
        must("xfs_repair", "-n", "-f", image)
        wrong = stale(image)
        assert not wrong, f"round {seed}: {len(wrong)} pages are stale, the first ones at {wrong[:8]}"


main()
