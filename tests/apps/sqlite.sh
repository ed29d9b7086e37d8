#!/bin/sh
# sqlite.sh [TRANSACTIONS]: SQLite in WAL and DELETE mode; then with the daemon killed in the middle.
. "$(dirname "$0")/lib.sh"

count=${1:-50000}
sql() { python3 "$HERE/sqlite.py" "$@"; }

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
        sql "$MNT/$mode.db" $mode 10000000 "$WORK/noted" >/dev/null 2>&1 &
        writer=$!
        sleep "$round.$round"
        kill_daemon
        wait $writer && fail 'the writer did not notice'
        mount_volume
        result=$(sql "$MNT/$mode.db" check "$WORK/noted") || fail "$mode after kill -9: $result"
        say "$mode after kill -9: $result"
    done
    unmount
    fsck_clean --data
done
say 'fsck clean'
