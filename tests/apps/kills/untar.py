"""An archive of files, directories and links is unpacked, each member noted when it is there; then the
tree is removed again, and so on.
"""

import io
import os
import random
import shutil
import stat
import tarfile

from common import SYNC, Ledger, lines, main, replace, sync_dir

MEMBERS = 250


def archive(seed):
    """The members of the archive of this seed, with their content."""
    rng = random.Random(f"archive {seed}")
    directories, files, out = ["t"], [], []
    out.append((info("t", tarfile.DIRTYPE, rng), b""))
    for i in range(MEMBERS):
        name = f"{rng.choice(directories)}/{'n' * rng.randrange(1, 40)}{i}"
        pick = rng.random()
        if pick < 0.1:
            directories.append(name)
            out.append((info(name, tarfile.DIRTYPE, rng), b""))
        elif pick < 0.2:
            member = info(name, tarfile.SYMTYPE, rng)
            member.linkname = "x" * rng.choice([5, 60, 90])
            out.append((member, b""))
        elif pick < 0.27 and files:
            # As in a real archive, all names of a file have its attributes.
            target = rng.choice(files)
            member = info(name, tarfile.LNKTYPE, rng)
            member.linkname, member.mode, member.mtime = target.name, target.mode, target.mtime
            out.append((member, b""))
        else:
            data = rng.randbytes(rng.choice([0, 1, 700, 4096, 9000, 40_000, 300_000]))
            member = info(name, tarfile.REGTYPE, rng)
            member.size = len(data)
            files.append(member)
            out.append((member, data))
    return out


def info(name, kind, rng):
    member = tarfile.TarInfo(name)
    member.type, member.mtime = kind, rng.randrange(1_500_000_000)
    member.mode = 0o755 if kind == tarfile.DIRTYPE else rng.choice([0o644, 0o600, 0o755, 0o444])
    member.uid, member.gid = os.getuid(), os.getgid()
    return member


def pack(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for member, data in members:
            t.addfile(member, io.BytesIO(data))
    out.seek(0)
    return out


def write(directory, ledgers, seed):
    packed = pack(archive(seed))
    ledger = Ledger(f"{ledgers}/members")
    old = [int(n[1:]) for n in os.listdir(directory) if n[0] == "u"]
    number = max([*old, *(int(w[1]) for w in lines(f"{ledgers}/members"))], default=0)
    while True:
        for n in sorted(old)[:-1]:
            remove(ledger, directory, n)
        number += 1
        old = [*sorted(old)[-1:], number]
        top = f"{directory}/u{number}"
        ledger.note("top?", number)
        os.mkdir(top)
        settle(directory)
        ledger.note("top", number)
        unpack(ledger, packed, top, number)


def unpack(ledger, packed, top, number):
    packed.seek(0)
    # Errors of chmod and utime are errors, too.
    with tarfile.open(fileobj=packed, errorlevel=2) as t:
        # Modes as they are, in every version of Python.
        t.extraction_filter = lambda member, _: member
        for i, member in enumerate(t):
            try:
                t.extract(member, top, set_attrs=True)
            except tarfile.ExtractError as e:
                raise OSError(str(e)) from e
            settle(os.path.dirname(f"{top}/{member.name}"))
            ledger.note("member", number, i)


def settle(directory):
    """In `durability=commit` a sync of anything commits all that was done before it."""
    if SYNC:
        sync_dir(directory)


def remove(ledger, directory, number):
    ledger.note("gone?", number)
    shutil.rmtree(f"{directory}/u{number}")
    settle(directory)
    ledger.note("gone", number)


def wrong(path, member, data, top):
    """What is wrong with the member at `path`, if anything."""
    s = os.lstat(path)
    if member.issym():
        return None if os.readlink(path) == member.linkname else "link target"
    if member.islnk():
        return None if s.st_ino == os.lstat(f"{top}/{member.linkname}").st_ino else "another file"
    if member.isdir():
        return None if stat.S_ISDIR(s.st_mode) else "no directory"
    if s.st_size != len(data):
        return f"{s.st_size} bytes instead of {len(data)}"
    with open(path, "rb") as f:
        if f.read() != data:
            return "content"
    if stat.S_IMODE(s.st_mode) != member.mode or int(s.st_mtime) != member.mtime:
        return f"mode {s.st_mode:o} or time {s.st_mtime}"
    return None


def check_tree(findings, top, members, sure):
    for i, (member, data) in enumerate(members):
        path = f"{top}/{member.name}"
        if i in sure:
            try:
                what = wrong(path, member, data, top)
            except OSError as e:
                what = str(e)
            if what:
                findings.add(f"{path}: {what}")
        elif os.path.lexists(path) and member.isreg():
            with open(path, "rb") as f:
                found = f.read()
            if found != data[: len(found)]:
                findings.add(f"{path}: foreign bytes")
    known = {f"{top}/{m.name}" for m, _ in members}
    for root, directories, names in os.walk(top):
        for name in [*directories, *names]:
            if f"{root}/{name}" not in known:
                findings.add(f"{root}/{name}: is not of the archive")


def check(directory, ledgers, seed, findings):
    members = archive(seed)
    trees, gone, dying, last = {}, set(), set(), 0
    acknowledged = 0
    for w in lines(f"{ledgers}/members"):
        verb, number = w[0], int(w[1])
        last = max(last, number)
        acknowledged += verb in ("top", "member", "gone")
        if verb == "top":
            trees[number] = set()
        elif verb == "member":
            trees.setdefault(number, set()).add(int(w[2]))
        elif verb == "checked":
            acknowledged = 0
        elif verb == "gone?":
            dying.add(number)
        elif verb == "gone":
            gone.add(number)
            trees.pop(number, None)
    for number in gone:
        if os.path.lexists(f"{directory}/u{number}"):
            findings.add(f"u{number} is back, its removal was acknowledged")
    for number, sure in trees.items():
        if not os.path.isdir(f"{directory}/u{number}"):
            if number not in dying:
                findings.add(f"u{number} is lost")
            continue
        check_tree(findings, f"{directory}/u{number}", members, set() if number in dying else sure)
    for name in os.listdir(directory):
        if name[0] == "u" and int(name[1:]) not in {*trees, *dying, last}:
            findings.add(f"{name} was never made")
    if not findings.count:
        note = [f"top {n}\n" + "".join(f"member {n} {i}\n" for i in sorted(s)) for n, s in trees.items() if n not in dying]
        # Of no use any more: what is half removed, or was just about to be made.
        rest = {*dying, last} - {n for n in trees if n not in dying}
        note += [f"gone? {n}\n" for n in rest if os.path.lexists(f"{directory}/u{n}")]
        replace(f"{ledgers}/members", ("".join(note) + f"checked {last}\n").encode())
    return acknowledged


if __name__ == "__main__":
    main(write, check)
