"""xfstests on QuayFS: docs/conformance.md. xfstests itself is built elsewhere and given by its directory, in
which the few places are changed that ask for the type of a file system to know how to make one."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.normpath(f"{HERE}/../../..")
# CPUs that go away and memory that is compacted: everything else on the machine would have to bear it.
LEFT_OUT = {"generic/650", "generic/750"}


def arguments():
    p = argparse.ArgumentParser(prog="xfstests", description="xfstests on QuayFS.")
    p.add_argument("xfstests", help="a directory in which it was built")
    p.add_argument("tests", nargs="*", help="tests (generic/001), or groups of generic (quick)")
    p.add_argument("--quayfs", default=f"{TOP}/target/release/quayfs")
    p.add_argument("--options", default="", help="mount options")
    p.add_argument("--work", default="/var/tmp", help="where data and results are")
    p.add_argument("--fast", default="/dev/shm", help="where regions are")
    p.add_argument("--data", default="12G", help="size of the volumes")
    p.add_argument("--seconds", type=int, default=300, help="time for each test")
    return p.parse_intermixed_args()


def edit(path, *changes):
    """Replaces the first match of each pattern, unless that was done before."""
    with open(path) as f:
        text = f.read()
    mode = os.stat(path).st_mode
    for pattern, new in changes:
        if new in text:
            continue
        text, n = re.subn(pattern, lambda _, new=new: new, text, count=1, flags=re.M)
        if n != 1:
            sys.exit(f"{path}: nothing matches {pattern}")
    # Not in place: a shell may be reading it.
    with open(f"{path}.new", "w") as f:
        f.write(text)
    os.chmod(f"{path}.new", mode)
    os.rename(f"{path}.new", path)


def prepare(xfstests):
    """How to make a volume, of a given size too; how many entries a list has, which names and times there
    are; that there are quotas; an end to tests that hang."""
    edit(
        f"{xfstests}/common/rc",
        (r"^\tnfs\*\|afs\|cifs\|ceph\|overlay\|glusterfs\|pvfs2\|9p\|fuse\|virtiofs\)\n(?=\t\t# unable to re-create)",
         "\tfuse)\n\t\t$QUAYFS_VOLUME $SCRATCH_DEV\n\t\treturn $?\n\t\t;;\n"
         "\tnfs*|afs|cifs|ceph|overlay|glusterfs|pvfs2|9p|virtiofs)\n"),
        (r"^\tgfs2\)\n(?=\t\t# mkfs.gfs2 doesn't)", "\tfuse)\n\t\t$QUAYFS_VOLUME $SCRATCH_DEV $fssize\n\t\t;;\n\tgfs2)\n"),
        (r"^ +ext2\|ext3\|ext4\|f2fs\|xfs\|btrfs\)\n(?=\t\t# do nothing)", "        fuse|ext2|ext3|ext4|f2fs|xfs|btrfs)\n"),
        (r'^\tocfs2\)\n(?=\t\techo "\$s64min)', "\tfuse|ocfs2)\n"),
    )
    edit(f"{xfstests}/common/attr", (r"^\tjfs\)\n(?=\t\techo 8191)", "\tfuse)\n\t\techo 511\n\t\t;;\n\tjfs)\n"))
    edit(
        f"{xfstests}/common/quota",
        (r"^    gfs2\|ocfs2\|bcachefs\)\n", "    fuse|gfs2|ocfs2|bcachefs)\n"),
        (r"^_require_prjquota\(\)\n\{\n", '_require_prjquota()\n{\n    [ "$FSTYP" = fuse ] && return\n'),
        (r"^\text2\|ext3\|ext4\|gfs2\|bcachefs\)\n(?=\t\tVFS_QUOTA=1)", "\tfuse|ext2|ext3|ext4|gfs2|bcachefs)\n"),
    )
    edit(f"{xfstests}/check", (r"local cmd=\(bash -c", "local cmd=(timeout -k 10 ${TEST_TIMEOUT:-300} bash -c"))


def wanted(xfstests, names):
    """The tests that are named, or in a group that is."""
    tests = []
    for name in names:
        if "/" in name:
            tests.append(name)
            continue
        for test in sorted(f for f in os.listdir(f"{xfstests}/tests/generic") if re.fullmatch(r"\d{3}", f)):
            with open(f"{xfstests}/tests/generic/{test}") as f:
                if re.search(rf"^_begin_fstest\b.*\b{name}\b", f.read(), re.M):
                    tests.append(f"generic/{test}")
    return [t for t in tests if t not in LEFT_OUT]


def report(text):
    """Counts, failures, and why others were not run."""
    def named(what):
        return [t for line in re.findall(rf"^{what}: (.*)$", text, re.M) for t in line.split()]

    ran, not_run, failed = named("Ran"), named("Not run"), named("Failures")
    print(f"{len(ran)} selected, {len(ran) - len(not_run)} executed, {len(failed)} failed, {len(not_run)} not run")
    print("failed:", " ".join(failed))
    why = {}
    for test, reason in re.findall(r"^generic/(\d+)\s.*?\[not run\] (.*)", text, re.M):
        reason = re.sub(r"/\S+", "PATH", re.sub(r"\S+-(test|scratch)\b", "DEV", reason))
        why.setdefault(reason, []).append(test)
    for reason, tests in sorted(why.items(), key=lambda w: -len(w[1])):
        print(f"{len(tests):4} {reason}: {' '.join(tests)}")
    return not failed


def main():
    options = arguments()
    xfstests = os.path.abspath(options.xfstests)
    prepare(xfstests)
    name = f"quayfs{os.getpid()}"
    log = tempfile.mkdtemp(prefix="quayfs-xfstests-", dir=options.work)
    os.chmod(log, 0o755)
    volumes, mounts = f"{log}/volumes", [f"/mnt/{name}-test", f"/mnt/{name}-scratch"]
    for d in [volumes, *mounts]:
        os.mkdir(d)
    environment = os.environ | {
        "QUAYFS": os.path.abspath(options.quayfs), "QUAYFS_STORE": volumes, "QUAYFS_FAST": options.fast, "QUAYFS_LOG": log,
        "QUAYFS_DATA": options.data, "QUAYFS_OPTIONS": options.options, "QUAYFS_VOLUME": f"{HERE}/volume",
        "TEST_TIMEOUT": str(options.seconds), "HOST_OPTIONS": f"{log}/config",
    }
    # Quotas are asked for by programs that call quotactl(2), which no FUSE server is told of.
    os.mkdir(f"{log}/bin")
    for program in ("quota", "quotaon", "quotaoff", "quotacheck", "repquota", "setquota", "xfs_quota"):
        os.symlink(f"{HERE}/quota", f"{log}/bin/{program}")
    environment["PATH"] = f"{log}/bin:{os.environ['PATH']}"
    with open(f"{log}/config", "w") as f:
        for key, value in {
            "FSTYP": "fuse", "FUSE_SUBTYP": f".{name}", "RESULT_BASE": f"{log}/results",
            "TEST_DEV": f"{name}-test", "TEST_DIR": mounts[0], "SCRATCH_DEV": f"{name}-scratch", "SCRATCH_MNT": mounts[1],
        }.items():
            f.write(f"export {key}={value}\n")
    helper = f"/sbin/mount.fuse.{name}"
    os.symlink(f"{HERE}/volume", helper)
    try:
        with open(f"{log}/output", "w") as out:
            subprocess.run(["./check", *wanted(xfstests, options.tests or ["quick"])], cwd=xfstests, env=environment, check=False,
                           stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    finally:
        for mount in mounts:
            while os.path.ismount(mount):
                if subprocess.run(["umount", mount], check=False).returncode:
                    subprocess.run(["umount", "-l", mount], check=True)
            os.rmdir(mount)
        os.unlink(helper)
    with open(f"{log}/output") as f:
        well = report(f.read())
    if os.path.exists(f"{log}/recovered"):
        with open(f"{log}/recovered") as f:
            print(len(f.readlines()), "mounts recovered a volume that was shut down")
    if os.path.exists(f"{log}/damage"):
        well = False
        print(f"damage: {log}/damage")
    shutil.rmtree(volumes)
    for volume in ("test", "scratch"):
        region = f"{options.fast}/{name}-{volume}.region"
        if os.path.exists(region):
            os.unlink(region)
    print(f"output of each test: {log}/results")
    sys.exit(0 if well else 1)


main()
