#!/bin/sh
# messages.sh: what 1,000 pwrite + fsync on an open file cost in FUSE messages.
. "$(dirname "$0")/lib.sh"

volume 256M 1G
mount_volume durability=op
python3 - "$MNT" <<'P'
import json, os, sys
root = sys.argv[1]
def requests():
    return json.loads(os.getxattr(root, "quayfs.status"))["counters"]["requests"]
fd = os.open(f"{root}/f", os.O_CREAT | os.O_RDWR)
os.pwrite(fd, b"x" * (4 << 20), 0)
os.fsync(fd)
before = requests()
idle = requests() - before
before = requests()
for i in range(1000):
    os.pwrite(fd, b"y" * 4096, i % 1000 * 4096)
    os.fsync(fd)
cost = requests() - before - idle
print(f"messages   1,000 x (pwrite of 4 KiB + fsync): {cost} messages")
assert cost == 1000, cost
P
unmount
fsck_clean
