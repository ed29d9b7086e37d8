#!/bin/sh
# postgres.sh [SECONDS]: initdb, pgbench, pg_amcheck; then again with the daemon killed in the middle.
. "$(dirname "$0")/lib.sh"

seconds=${1:-20}
NEEDS=allow_other
for dir in /usr/lib/postgresql/*/bin; do PATH=$dir:$PATH; done
command -v initdb >/dev/null || fail 'no initdb: install postgresql'
data=$MNT/data
export PGHOST="$WORK" PGUSER=postgres PGDATABASE=postgres
chown postgres "$WORK"
as() { setpriv --reuid postgres --regid postgres --init-groups -- env PATH="$PATH" "$@"; }
server() { quietly as pg_ctl -D "$data" -l "$WORK/server.log" -o "-c listen_addresses= -k $WORK" -w -t 300 "$@"; }

# Every row that psql has printed is committed.
note() { seq "$1" 100000000 | sed 's/.*/INSERT INTO noted VALUES (&) RETURNING n;/' | as psql -qAt 2>/dev/null | grep --line-buffered -E "^[0-9]+$" >>"$WORK/noted"; }
load() {
    as pgbench -n -c 4 -T 600 &
    note "$1"
    wait $!
}
check() {
    last=$(tail -1 "$WORK/noted")
    found=$(as psql -qAt -c "SELECT count(*) FROM noted WHERE n <= ${last:-0}")
    [ "$found" = "${last:-0}" ] || fail "$1: $last rows were committed, $found are there"
    balance=$(as psql -qAt -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) =
        (SELECT coalesce(sum(delta), 0) FROM pgbench_history)')
    [ "$balance" = t ] || fail "$1: accounts and history disagree"
    quietly as pg_amcheck --install-missing --heapallindexed --parent-check --all
    say "$1: ${last:-0} rows as committed, balances true, pg_amcheck clean"
}

volume 512M 4G
mount_volume
mkdir "$data"
chown postgres "$data"
quietly as initdb -D "$data" --data-checksums -A trust
server start
quietly as pgbench -i -q -s 10
quietly as psql -c 'CREATE TABLE noted (n int PRIMARY KEY)'
: >"$WORK/noted"
quietly as pgbench -n -c 4 -T "$seconds"
say "pgbench: $(sed -n 's/^tps = \([0-9]*\).*/\1 transactions a second/p' "$WORK/quietly.out")"
server stop
unmount
fsck_clean
mount_volume
server start
check 'after a remount'
for round in 1 2 3; do
    server_pid=$(head -1 "$data/postmaster.pid")
    next=$(($(wc -l <"$WORK/noted") + 1))
    # What was under way when the daemon died may be there.
    as psql -qAt -c "DELETE FROM noted WHERE n >= $next"
    interrupted "$((seconds / 4)).$round" load "$next"
    kill -9 "$server_pid" 2>/dev/null || true
    while kill -0 "$server_pid" 2>/dev/null; do sleep 0.1; done
    server start
    check "after kill -9, $round"
done
server stop
quietly as pg_checksums --check -D "$data"
unmount
fsck_clean --data
say 'pg_checksums and fsck clean'
