#!/bin/sh
# full.sh: to ENOSPC and back, five times with data, five times with files.
. "$(dirname "$0")/lib.sh"

volume 64M 512M
mount_volume
python3 "$HERE/full.py" "$MNT"
unmount
fsck_clean --data
say 'fsck clean'
