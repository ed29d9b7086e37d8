#!/bin/sh
# fio.sh [SIZE]: verified writes through 256 MiB of pmem, in every mode.
. "$(dirname "$0")/lib.sh"

size=${1:-4G}
for mode in data=journal,durability=op data=journal,durability=commit data=ordered data=writeback; do
    for direct in 0 1; do
        volume 256M 8G
        mount_volume $mode
        for rw in randwrite write; do
            [ $rw = write ] && bs=64k || bs=4k
            job="--name=f --directory=$MNT --size=$size --rw=$rw --bs=$bs --direct=$direct --verify=crc32c
                --verify_fatal=1 --ioengine=psync --fallocate=none --randseed=7 --output=$WORK/fio.out"
            start=$(date +%s)
            # shellcheck disable=SC2086
            fio $job --do_verify=0 || fail "$mode direct=$direct $rw: $(tail -5 "$WORK/fio.out")"
            rounds=$(status rounds)
            # Read back with nothing in the kernel's cache.
            echo 1 >/proc/sys/vm/drop_caches
            # shellcheck disable=SC2086
            fio $job --verify_only || fail "$mode direct=$direct $rw: read back: $(tail -5 "$WORK/fio.out")"
            grep -q 'err= 0' "$WORK/fio.out" || fail "$mode direct=$direct $rw: $(grep err= "$WORK/fio.out")"
            say "$mode direct=$direct $rw $bs: $size written and verified in $(($(date +%s) - start)) s," \
                "$rounds rounds"
            rm -f "$MNT"/f.*
        done
        unmount
        fsck_clean --data
    done
done
say 'fsck clean after each'
