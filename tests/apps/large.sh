#!/bin/sh
# large.sh [FILES] [MIB]: a volume of 1 TiB, sparse, with very many files on a machine with little memory: a control
# group for the daemon and for what uses the mount, so that the kernel's caches of either count as well.
. "$(dirname "$0")/lib.sh"

files=${1:-10000000} mib=${2:-512}
v1=$(findmnt -fno TARGET -t cgroup -O memory || true)
v2=$(findmnt -fno TARGET -t cgroup2 || true)
if [ -n "$v1" ]; then
    group=$v1/quayfs-large-$$ limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes
else
    group=${v2:?no control groups are mounted}/quayfs-large-$$ limit=memory.max peak=memory.peak
    echo +memory >"$v2/cgroup.subtree_control"
fi
mkdir "$group"
trap 'finish_group' EXIT
finish_group() {
    failed=$?
    # What ends in there is to have left the group first.
    (finish) || true
    rmdir "$group" || true
    exit $failed
}
echo $((mib << 20)) >"$group/$limit"
# within COMMAND...: in that group.
within() { sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$@"; }
memory() { say "daemon memory: $(grep -E 'RssAnon' /proc/"$(status pid)"/status | tr -s '\t ' ' '), of all: $(($(cat "$group/$peak") >> 20)) MiB at most"; }
# mount_small: in the group, with a quarter of its memory for what the daemon keeps, and nothing of the media in caches.
# The mount ends with its daemon: another one would recover, and close the volume before recovery is timed.
mount_small() {
    echo 3 >/proc/sys/vm/drop_caches
    within "$QUAYFS" mount "$WORK/vol" "$MNT" -o "norestart,memory=$((mib / 4))M${OPTIONS:+,$OPTIONS}" >/dev/null
}

"$QUAYFS" mkfs "$WORK/vol" --size 1T --sparse >"$WORK/mkfs.out" 2>&1 || fail "mkfs: $(cat "$WORK/mkfs.out")"
say "$(grep room "$WORK/mkfs.out"); $(grep region "$WORK/mkfs.out")"
mount_small
within python3 "$HERE/large.py" "$MNT" fill "$files"
memory
kill_daemon
mount_small
say "after kill -9: recovery $(status recovery_us) us"
within python3 "$HERE/large.py" "$MNT" check "$files"
memory
unmount
mount_small
say "clean: recovery $(status recovery_us) us"
unmount
fsck_clean
say 'fsck clean'
