#!/bin/sh
# rocksdb.sh [KEYS]: db_bench fills, reads and verifies; then again with the daemon killed in the middle.
. "$(dirname "$0")/lib.sh"

keys=${1:-1000000}
db=$MNT/db
bench() { db_bench --db="$db" --value_size=400 --compression_type=none "$@"; }

volume 512M 8G
mount_volume
quietly bench --num="$keys" --threads=2 --benchmarks=fillrandom,overwrite,readrandom,compact,verifychecksum
for what in fillrandom overwrite readrandom; do
    say "$(sed -n "s/^$what .* \([0-9]*\) ops\/sec.*/$what: \1 a second/p" "$WORK/quietly.out")"
done
unmount
fsck_clean
mount_volume
quietly bench --use_existing_db --num="$keys" --benchmarks=readseq,verifychecksum
quietly ldb --db="$db" checkconsistency
say 'verifychecksum and checkconsistency after a remount'
for round in 1 2 3; do
    rm -rf "$db"
    # Keys are written in order and each is synced, so those that are there have no gap.
    interrupted "3.$round" bench --num=100000000 --sync --benchmarks=fillseq --stats_interval=1000
    noted=$(sed -n 's/.*thread 0: ([0-9]*,\([0-9]*\)) ops.*/\1/p' "$WORK/interrupted.out" | tail -1)
    quietly ldb --db="$db" checkconsistency
    ldb --db="$db" --key_hex scan | sed -n 's/^0x\([0-9A-F]*\) .*/\1/p' >"$WORK/keys"
    python3 - "$WORK/keys" "${noted:-0}" <<'P' || fail "keys are missing: $(tail -3 "$WORK/interrupted.out")"
import sys
keys = [int(line[:16], 16) for line in open(sys.argv[1])]
assert keys == list(range(len(keys))), "a gap"
assert len(keys) >= int(sys.argv[2]), (len(keys), sys.argv[2])
P
    quietly bench --use_existing_db --num=1000 --benchmarks=verifychecksum
    say "after kill -9, $round: $(wc -l <"$WORK/keys") keys without a gap, ${noted:-0} of them reported; checks clean"
done
unmount
fsck_clean --data
say 'fsck clean'
