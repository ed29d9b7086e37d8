"""What happens to a mount when what its data are on is slow, stopped, killed, full or taken away.

Each case begins with a mount at work and ends with one that is unmounted and whole: all that was acknowledged is there,
and `fsck --data` finds nothing.
"""

import json
import os
import time

from daemon import PATIENCE, Finding, run, said
from engine import until

ALL = ("small", "large", "read", "names")
# Seconds after which `quayfs status` calls a device silent.
SILENT = 30


def expect(what, holds):
    if not holds:
        raise Finding(what)


def whole(v):
    """Mounts, looks for all that was acknowledged, unmounts, checks."""
    v.mount()
    v.check()
    v.umount()
    v.fsck()


def no_errors(probes):
    for p in probes.values():
        expect(f"{p['kind']}: {p['errors']}", not p["errors"])


def times(probes):
    return {kind: round(p["longest"], 1) for kind, p in probes.items()}


def rates(v, options):
    """fio writes with checksums and reads them back, with nothing in the caches; its rates."""
    job = ["--name=f", f"--directory={v.mnt}", "--ioengine=psync", "--fallocate=none", "--randseed=7", "--verify=crc32c",
           "--verify_fatal=1", "--verify_state_save=0", "--output-format=json"]  # fmt: skip
    jobs = {
        "4 KiB + fsync": ["--rw=randwrite", "--bs=4k", "--fsync=1", f"--size={options.size // 8}M"],
        "64 KiB, random": ["--rw=randwrite", "--bs=64k", "--end_fsync=1", f"--size={options.size}M"],
        "1 MiB, in order": ["--rw=write", "--bs=1M", "--end_fsync=1", f"--size={options.size}M"],
    }
    found = {}
    v.mount()
    for name, words in jobs.items():
        wrote = fio(name, *job, *words, "--do_verify=0")["write"]
        found[name] = wrote["iops"] if name.startswith("4 KiB") else wrote["io_bytes"] / (1 << 20) / (wrote["runtime"] / 1000)
        v.umount()
        drop_caches()
        v.mount()
        reread = fio(name, *job, *words, "--verify_only")["read"]
        expect(f"{name}: nothing was read back", reread["io_bytes"] > 0)
        if name.startswith("1 MiB"):
            drop_caches()
            v.umount()
            v.mount()
            direct = ["--name=f", f"--directory={v.mnt}", "--output-format=json", "--rw=randread", "--bs=4k", "--direct=1"]
            got = fio("read", *direct, f"--size={options.size}M", "--number_ios=4000")["read"]
            found["4 KiB read, random"] = got["iops"]
        os.unlink(f"{v.mnt}/f.0.0")
    v.umount()
    v.fsck()
    return {name: round(rate) for name, rate in found.items()}


def fio(name, *words):
    done = run("fio", *words, timeout=5 * PATIENCE)
    if done.returncode:
        raise Finding(f"fio, {name}: {said(done)}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    expect(f"fio, {name}: error {job['error']}", job["error"] == 0)
    return job


def drop_caches():
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("1")


def deaths(v, options):
    """The daemon is killed: nobody notices. Then all of the mount is."""
    v.mount()
    v.check()
    v.write()
    for _ in range(3):
        time.sleep(2)
        v.kill_daemon()
        v.writes()
    time.sleep(2)
    v.kill_all()
    v.stop_writing(fails=True)
    v.fsck()
    whole(v)


def stalled(v, options, *kinds):
    """What probes of these kinds have to wait for while the server is stopped."""
    v.probe(*kinds)
    time.sleep(3)
    v.engine.stop()
    try:
        v.held()
        time.sleep(options.stall)
        if "large" in kinds and options.stall > SILENT:
            until("status tells", lambda: any("the data device has not answered" in why for why in v.status()["reasons"]))
        os.unlink(f"{v.end}.held")
    finally:
        v.engine.go_on()
    time.sleep(5)
    probes = v.probed()
    no_errors(probes)
    return probes


def stall(v, options):
    """The server is stopped for a while and goes on: calls wait, none fails."""
    v.mount()
    v.cold()
    v.umount()
    v.mount()
    v.check()
    little = stalled(v, options, "small", "names")
    for p in little.values():
        expect(f"{p['kind']} has waited for the data device", p["meanwhile"] > 0)
    v.write()
    probes = stalled(v, options, *ALL)
    v.stop_writing()
    expect(f"a failure: {v.status()}", v.status()["read_only_reason"] is None)
    v.umount()
    v.fsck()
    whole(v)
    return {"small writes alone": times(little), "with large ones": times(probes)}


def death_while_stalled(v, options):
    """The daemon is killed while the server is stopped, and the next one goes on when that does."""
    v.mount()
    v.check()
    v.write()
    time.sleep(2)
    v.engine.stop()
    try:
        time.sleep(2)
        os.kill(v.status()["daemon"]["pid"], 9)
        time.sleep(5)
        # It says something, whatever that is, and does not wait.
        v.status()
    finally:
        v.engine.go_on()
    until("the next daemon", lambda: (v.status().get("daemon") or {}).get("restarts") == 1)
    time.sleep(2)
    v.stop_writing()
    v.umount()
    v.fsck()
    whole(v)


def stage(v, name):
    """Writes a little, so that it lies in the region and no round is due for some seconds."""
    for n in range(64):
        with open(f"{v.mnt}/{name}{n}", "wb") as f:
            f.write(f"{name}{n}".encode() * 512)
            os.fsync(f.fileno())


def expect_staged(v, name):
    for n in range(64):
        with open(f"{v.mnt}/{name}{n}", "rb") as f:
            expect(f"{name}{n} has another content", f.read() == f"{name}{n}".encode() * 512)


def leave_while_stalled(v):
    """`umount --no-drain`; how long that took."""
    # Nothing is written to the device before, that would have to be flushed.
    v.mount()
    stage(v, "a")
    v.engine.stop()
    try:
        took, _ = v.umount("--no-drain")
        expect("it is still there", not v.is_mounted())
    finally:
        v.engine.go_on()
    v.fsck()
    v.mount()
    expect_staged(v, "a")
    v.umount()
    return round(took, 1)


def unmount_while_stalled(v, options):
    """`umount --no-drain` needs no data device; `umount` waits for two minutes at most, and the volume is closed later."""
    v.mount()
    v.check()
    v.write()
    time.sleep(3)
    v.stop_writing()
    v.umount()
    at_once = leave_while_stalled(v) if v.engine.answers_flushes else None
    v.mount()
    stage(v, "b")
    v.engine.stop()
    try:
        gives_up, told = v.umount(fails=32)
        expect(f"it says {told!r}", "makes no progress" in told)
    finally:
        v.engine.go_on()
    until("the end of the daemon", lambda: not v.processes())
    v.mount()
    expect_staged(v, "b")
    v.umount()
    v.fsck()
    whole(v)
    return {"--no-drain": at_once, "gives up": round(gives_up, 1)}


def restart(v, options):
    """The server is killed, and another one started after a while."""
    v.mount()
    v.cold()
    v.umount()
    v.mount()
    v.check()
    v.write()
    v.probe(*ALL)
    time.sleep(3)
    v.held()
    v.engine.kill_server()
    time.sleep(options.stall)
    found = {}
    if v.engine.waits_for_server:
        v.engine.start_again()
        time.sleep(5)
        probes = v.probed()
        no_errors(probes)
        v.stop_writing()
        v.umount()
    else:
        probes = v.probed()
        found["errors"] = {kind: p["errors"] for kind, p in probes.items()}
        ends_read_only(v)
        v.engine.start_again()
    v.fsck()
    whole(v)
    return {"waited": times(probes), **found}


def ends_read_only(v):
    """The device has failed: the mount is read-only, says why, and cannot be closed."""
    status = until("a mount that is read-only", lambda: s if (s := v.status())["read_only_reason"] else None)
    expect(f"health {status['health']}", status["health"] == "failed")
    v.stop_writing(fails=True)
    _, told = v.umount(fails=32)
    expect(f"it says {told!r}", "not closed" in told)
    return status["read_only_reason"]


def full(v, options):
    """The engine takes nothing more; later it has room again."""
    v.mount()
    v.check()
    v.write()
    v.probe("small", "large", "names")
    time.sleep(2)
    v.engine.fill()
    v.held()
    found = {}
    try:
        if v.engine.waits_for_room:
            time.sleep(options.stall / 2)
        else:
            found["reason"] = until("a failure", lambda: v.status()["read_only_reason"])
    finally:
        v.engine.room()
    time.sleep(5)
    probes = v.probed()
    if v.engine.waits_for_room:
        no_errors(probes)
        v.stop_writing()
        v.umount()
    else:
        ends_read_only(v)
        found["errors"] = {kind: p["errors"] for kind, p in probes.items()}
    v.fsck()
    whole(v)
    return {"waited": times(probes), **found}


def lost_client(v, options):
    """The client is killed, as a host is that stops, and all that it had not flushed is gone."""
    v.mount()
    v.check()
    v.write()
    time.sleep(3)
    v.engine.client.end()
    reason = ends_read_only(v)
    v.engine.detach()
    v.engine.attach()
    v.fsck()
    whole(v)
    return {"reason": reason}


def fenced(v, options):
    """The cluster refuses the client, as it does when another one has taken the image from it."""
    v.mount()
    v.check()
    v.write()
    time.sleep(3)
    v.engine.fence()
    reason = ends_read_only(v)
    # It answers nothing any more, not even what needs no cluster.
    v.engine.client.end()
    v.engine.detach()
    v.engine.attach()
    v.fsck()
    whole(v)
    return {"reason": reason}


def two_clients(v, options):
    """RBD's exclusive lock goes to whichever client writes: it keeps nobody away."""
    engine, other = v.engine, f"{v.home}/other"
    os.makedirs(other)
    done = run("rbd", "create", "--size", "16M", "scratch", env=engine.environment)
    expect(said(done), done.returncode == 0)
    client = engine.client_at(other)
    try:
        holders = set()
        for place in (engine.mnt, other, engine.mnt):
            with open(f"{place}/scratch", "r+b", buffering=0) as f:
                f.write(b"x" * 4096)
                os.fsync(f.fileno())
                holders.update(engine.lockers("scratch"))
        expect(f"one holder: {holders}", len(holders) == 2)
    finally:
        run("fusermount", "-u", other)
        client.end()
