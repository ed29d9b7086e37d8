"""What the suites need of the machine. What is changed is said, and changed back where it can be."""

import contextlib
import grp
import os
import pwd
import subprocess
import sys

SWITCH = "/sys/module/fuse/parameters/enable_uring"


class Failure(Exception):
    """Something does not conform, or could not be tested."""


def run(*command, timeout=600, **more):
    """Ends in a `Failure` where the command hangs; ten minutes are more than anything here takes,
    however busy the machine."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **more)
    except subprocess.TimeoutExpired as e:
        raise Failure(f"{' '.join(map(str, command[:2]))} hangs") from e


def must(*command, **more):
    done = run(*command, **more)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, command))}: exit code {done.returncode}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def skipped(name):
    return os.environ.get(name) == "1"


def users():
    """Two users with their groups, that the permission tests change to."""
    try:
        pwd.getpwnam("tests")
    except KeyError:
        print("making the user `tests`, which stays (userdel tests)")
        must("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", "tests")
    return [(u, grp.getgrgid(pwd.getpwnam(u).pw_gid).gr_name) for u in ("nobody", "tests")]


@contextlib.contextmanager
def rings():
    """FUSE over io_uring is switched on."""
    if not os.path.exists(SWITCH):
        run("modprobe", "fuse")
    try:
        with open(SWITCH) as f:
            was = f.read().strip()
        if was != "Y":
            with open(SWITCH, "w") as f:
                f.write("Y")
    except OSError as e:
        sys.exit(f"{e}: FUSE over io_uring needs Linux 6.14 and root; QUAYFS_SKIP_URING=1 does without it")
    try:
        yield
    finally:
        if was != "Y":
            with open(SWITCH, "w") as f:
                f.write(was)


@contextlib.contextmanager
def helper(quayfs):
    """mount(8) finds us by a type of our own: its name. `mount -o remount` needs that."""
    subtype = f"quayfs-test-{os.getpid()}"
    path = f"/sbin/mount.fuse.{subtype}"
    os.symlink(quayfs, path)
    try:
        yield subtype
    finally:
        os.unlink(path)


@contextlib.contextmanager
def loop(path):
    """A block device that reads and writes the file with O_DIRECT."""
    device = must("losetup", "--find", "--show", "--direct-io=on", path).strip()
    try:
        with open(f"/sys/block/{os.path.basename(device)}/loop/dio") as f:
            if f.read().strip() != "1":
                raise Failure(f"{device} does not use O_DIRECT on {path}")
        yield device
    finally:
        must("losetup", "--detach", device)
