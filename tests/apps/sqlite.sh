#!/bin/sh
# sqlite.sh [TRANSACTIONS]: SQLite in WAL and DELETE mode; then by several processes at once, with the
# daemon killed in the middle.
. "$(dirname "$0")/lib.sh"

count=${1:-50000}
sql() { python3 "$HERE/sqlite.py" "$@"; }

# All have to notice.
many() {
    writers=
    for _ in 1 2 3 4 5 6; do
        sql "$@" 10000000 "$WORK/noted" && exit 0 &
        writers="$writers $!"
    done
    for writer in $writers; do wait "$writer" && exit 0; done
    return 1
}

volume 256M 2G
for mode in wal delete; do
    mount_volume
    rm -f "$WORK/noted"
    rate=$(sql "$MNT/$mode.db" $mode "$count" "$WORK/noted") || fail "$mode"
    unmount
    mount_volume
    result=$(sql "$MNT/$mode.db" check "$WORK/noted") || fail "$mode: $result"
    say "$mode: $count transactions at $rate; after a remount: $result"
    for round in 1 2 3 4 5; do
        interrupted "$round.$round" many "$MNT/$mode.db" $mode
        # Each process may have had one under way when each daemon died.
        result=$(sql "$MNT/$mode.db" check "$WORK/noted" $((6 * round))) || fail "$mode after kill -9: $result"
        say "$mode, 6 processes, after kill -9: $result"
    done
    unmount
    fsck_clean --data
done
say 'fsck clean'
