#!/bin/sh
# many.sh [FILES]: one directory with very many files.
. "$(dirname "$0")/lib.sh"

files=${1:-1000000}
volume 2G 2G
mount_volume
python3 "$HERE/many.py" "$MNT" fill "$files"
say "daemon memory: $(grep -E 'RssAnon' /proc/"$(status pid)"/status | tr -s '\t ' ' ')"
kill_daemon
mount_volume
say "after kill -9: recovery $(status recovery_us) us"
python3 "$HERE/many.py" "$MNT" empty "$files"
say "daemon memory: $(grep -E 'RssAnon' /proc/"$(status pid)"/status | tr -s '\t ' ' ')"
unmount
fsck_clean
say 'fsck clean'
