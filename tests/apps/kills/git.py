"""git commits in a loop, with a repack now and then. What was committed is noted when `git commit` has
returned; afterwards the repository is sound, and each noted commit is there, with its tree.
"""

import os
import random
import subprocess

from common import SYNC, Ledger, lines, main, replace, sync_dir

ENVIRONMENT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "c",
    "GIT_COMMITTER_EMAIL": "c@example.org",
}
# Without `core.fsync=all` git leaves objects to the file system, as documented.
SETTINGS = ["-c", "core.fsync=all", "-c", "gc.auto=0"]


def git(repository, *arguments):
    run = subprocess.run(
        ["git", *SETTINGS, "-C", repository, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    return run.returncode, run.stdout.strip(), run.stderr.strip()


def must(repository, *arguments):
    code, out, err = git(repository, *arguments)
    if code:
        raise OSError(f"git {arguments[0]}: {err.splitlines()[-1] if err else code}")
    return out


def change(repository, n):
    """What commit `n` does to the tree."""
    rng = random.Random(n)
    for _ in range(rng.randrange(1, 6)):
        directory = f"{repository}/d{rng.randrange(4)}"
        os.makedirs(directory, exist_ok=True)
        with open(f"{directory}/f{rng.randrange(10)}", "wb") as f:
            f.write(rng.randbytes(rng.choice([20, 3000, 100_000])))
    with open(f"{repository}/number", "w") as f:
        f.write(str(n))


def write(directory, ledgers, seed):
    repository = f"{directory}/repository"
    ledger = Ledger(f"{ledgers}/commits")
    clean_up(repository)
    os.makedirs(repository, exist_ok=True)
    must(repository, "init", "-q", "-b", "main")
    code, out, _ = git(repository, "rev-list", "--count", "HEAD")
    n = int(out) if code == 0 else 0
    rng = random.Random(f"{seed}/{n}")
    while True:
        n += 1
        change(repository, n)
        must(repository, "add", "-A")
        must(repository, "commit", "-q", "--allow-empty", "-m", f"number {n}")
        commit = must(repository, "rev-parse", "HEAD")
        if SYNC:
            # git does not sync directories.
            sync_dir(f"{repository}/.git/refs/heads")
        ledger.note(commit, n)
        if rng.random() < 0.05:
            must(repository, "repack", "-adq")


def clean_up(repository):
    """What a user removes after git was killed."""
    for root, _, names in os.walk(f"{repository}/.git"):
        for name in names:
            if name.endswith(".lock") or name.startswith("tmp_"):
                os.unlink(f"{root}/{name}")


def check(directory, ledgers, _seed, findings):
    repository = f"{directory}/repository"
    noted = lines(f"{ledgers}/commits")
    clean_up(repository)
    code, head, err = git(repository, "rev-parse", "--verify", "HEAD")
    if code:
        if noted:
            findings.add(f"no HEAD: {err}")
        return 0
    code, out, err = git(repository, "fsck", "--strict", "--full", "--no-dangling", "--no-progress")
    if code or "error" in err or "missing" in out:
        findings.add(f"git fsck: {code} {(out + err)[:500]}")
    code, out, err = git(repository, "rev-list", "HEAD")
    history = out.split()
    if code:
        findings.add(f"git rev-list: {err}")
    numbers = {c: len(history) - i for i, c in enumerate(history)}
    for commit, n, *_ in noted:
        if numbers.get(commit) != int(n):
            findings.add(f"commit {n}, {commit}, is lost")
    if noted and len(history) - int(noted[-1][1]) not in (0, 1):
        findings.add(f"{len(history)} commits, {noted[-1][1]} were acknowledged")
    code, out, err = git(repository, "show", f"{head}:number")
    if out != str(len(history)):
        findings.add(f"HEAD is number {len(history)} and holds {out!r} {err}")
    # As a user would go on: whatever the dead git left in the tree and the index is not wanted.
    for arguments in (["reset", "-q", "--hard"], ["clean", "-qfd"]):
        code, out, err = git(repository, *arguments)
        if code:
            findings.add(f"git {arguments[0]}: {err}")
    if not findings.count:
        replace(f"{ledgers}/commits", f"{head} {len(history)} found\n".encode())
    return sum(len(w) == 2 for w in noted)


if __name__ == "__main__":
    main(write, check)
