#!/bin/sh
# recovery.sh [RUNS]: from exec to the first answered request after a death.
. "$(dirname "$0")/lib.sh"

runs=${1:-5}
volume 5G 8G
mount_volume durability=op
python3 - "$MNT" <<'P'
import os, sys
root = sys.argv[1]
for d in range(100):
    os.mkdir(f"{root}/d{d}")
    for f in range(1000):
        with open(f"{root}/d{d}/f{f}", "wb", buffering=0) as file:
            file.write(b"q" * 4096)
with open(f"{root}/big", "wb", buffering=0) as file:
    for i in range(700):
        file.write(bytes([i % 256]) * (1 << 20))
P
say "staged before: $(status staged_blocks) blocks"
for run in $(seq "$runs"); do
    kill_daemon
    sync
    python3 - "$QUAYFS" "$WORK/vol" "$MNT" <<'P'
import os, subprocess, sys, time
quayfs, volume, mount = sys.argv[1:]
before = os.stat(mount).st_dev
start = time.monotonic()
subprocess.run([quayfs, "mount", volume, mount, "-o", "durability=op,norestart"], check=True, stdout=subprocess.DEVNULL)
assert os.stat(f"{mount}/d99/f999").st_size == 4096 and os.stat(mount).st_dev != before
print(f"recovery   {1000 * (time.monotonic() - start):.0f} ms from exec to the first answer")
P
done
say "recovery took $(status recovery_us) us; staged: $(status staged_blocks) blocks"
unmount
fsck_clean
say 'fsck clean'
