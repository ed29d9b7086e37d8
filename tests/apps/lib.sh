# Shared by the scripts of this directory: volumes, mounts, deaths.
set -eu

HERE=$(cd "$(dirname "$0")" && pwd)
QUAYFS=${QUAYFS:-$HERE/../../target/release/quayfs}
NAME=$(basename "$0" .sh)-$$
WORK=${WORK:-/var/tmp/quayfs-apps}/$NAME
FAST=${FAST:-/dev/shm/quayfs-apps}/$NAME
MNT=$WORK/mnt

[ -x "$QUAYFS" ] || { echo "no $QUAYFS: cargo build --release first" >&2; exit 1; }
mkdir -p "$MNT" "$FAST"

finish() {
    status=$?
    # A second signal must not leave the mount behind.
    trap - EXIT
    trap '' INT TERM
    if mountpoint -q "$MNT"; then
        kill_daemon || true
    fi
    rm -rf "$WORK" "$FAST"
    exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

say() { printf '%-10s %s\n' "$(basename "$0" .sh)" "$*"; }
fail() { say "FAILED: $*"; exit 1; }

# volume PMEM_SIZE DATA_SIZE: a fresh volume.
volume() {
    rm -rf "$WORK/vol" "$FAST/pmem"
    "$QUAYFS" mkfs "$WORK/vol" --pmem "$FAST/pmem" --pmem-size "$1" --data-size "$2" \
        >/dev/null 2>"$WORK/mkfs.err" || fail "mkfs: $(cat "$WORK/mkfs.err")"
}

# mount_volume [OPTIONS]: with those of the environment as well. The mount ends when its daemon dies.
mount_volume() { "$QUAYFS" mount "$WORK/vol" "$MNT" -o "norestart,${1:-${NEEDS:-rw}}${OPTIONS:+,$OPTIONS}" >/dev/null 2>"$WORK/mount.err" || fail "mount: $(cat "$WORK/mount.err")"; }

unmount() { "$QUAYFS" umount "$MNT"; }

# status KEY: a number or a word of `quayfs info --json` of the mount.
status() {
    "$QUAYFS" info "$MNT" --json | python3 -c '
import json, sys
def find(tree, key):
    if isinstance(tree, dict):
        for k, v in tree.items():
            found = v if k == key else find(v, key)
            if found is not None:
                return found
    return None
print(find(json.load(sys.stdin), sys.argv[1]))' "$1"
}

# The daemon dies where it stands; its mount is taken away.
kill_daemon() {
    pid=$(status pid)
    kill -9 "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
    umount -l "$MNT"
}

fsck_clean() { "$QUAYFS" fsck "$WORK/vol" "$@" >"$WORK/fsck.out" 2>&1 || fail "fsck: $(cat "$WORK/fsck.out")"; }

# interrupted SECONDS COMMAND...: the daemon dies under a command, which has to notice; the volume is
# checked as it is, and mounted again.
interrupted() {
    after=$1
    shift
    "$@" >"$WORK/interrupted.out" 2>&1 &
    victim=$!
    sleep "$after"
    kill -0 $victim 2>/dev/null || fail "$1 had ended before the daemon died: $(tail -3 "$WORK/interrupted.out")"
    kill_daemon
    wait $victim && fail "$1 did not notice"
    fsck_clean
    mount_volume
}

# quietly COMMAND...: what it says is told if it fails.
quietly() { "$@" >"$WORK/quietly.out" 2>&1 || fail "$*: $(tail -5 "$WORK/quietly.out")"; }
