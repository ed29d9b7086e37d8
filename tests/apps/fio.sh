#!/bin/sh
# fio.sh [SIZE]: verified writes through 256 MiB of pmem, in every mode.
. "$(dirname "$0")/lib.sh"

size=${1:-4G}
for mode in data=journal,durability=op data=journal,durability=commit data=ordered data=writeback; do
    for direct in 0 1; do
        volume 256M 8G
        mount_volume $mode
        for rw in randwrite write; do
            start=$(date +%s)
            fio --name=f --directory="$MNT" --size="$size" --rw=$rw --bs=4k --direct=$direct \
                --verify=crc32c --do_verify=1 --verify_fatal=1 --ioengine=psync --fallocate=none \
                --randseed=7 --output="$WORK/fio.out" || fail "$mode direct=$direct $rw: $(tail -5 "$WORK/fio.out")"
            grep -q 'err= 0' "$WORK/fio.out" || fail "$mode direct=$direct $rw: $(grep err= "$WORK/fio.out")"
            say "$mode direct=$direct $rw: $size verified in $(($(date +%s) - start)) s," \
                "$(status rounds) rounds"
            # Once more with nothing in the kernel's cache.
            echo 1 >/proc/sys/vm/drop_caches
            fio --name=f --directory="$MNT" --size="$size" --rw=$rw --bs=4k --direct=$direct \
                --verify=crc32c --verify_only --verify_fatal=1 --ioengine=psync --fallocate=none \
                --randseed=7 --output="$WORK/fio.out" || fail "$mode direct=$direct $rw: read back"
            rm -f "$MNT"/f.*
        done
        unmount
        fsck_clean --data
    done
done
say 'fsck clean after each'
