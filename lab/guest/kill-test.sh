# One life of a machine that dies again and again: `kill-test.sh first CYCLE`, later
# `again CYCLE ACK ACK ACK`, with what each writer was last seen to acknowledge. Checks what the
# last death left, goes on writing, and never ends by itself.
. /machine.sh

pmem_up
kind=$1 cycle=$2
shift 2
if [ "$kind" = first ]; then
    region_size=32M make_volume
    set -- 0 0 0
else
    mount_pmem
    mkdir /vol
    ln -s /mnt/pm/region /vol/pmem
    ln -s /dev/vda /vol/data
    echo "canary $(records sing /dev/vdb)"
    quayfs fsck /vol >/tmp/fsck 2>&1 || fail "fsck: exit code $?: $(cat /tmp/fsck)"
    tail -n 3 /tmp/fsck
fi
echo "recovering"
quayfs mount /vol /mnt/q || fail "mount"
is_dax
grep recovered /vol/quayfs.log
found=$(records verify /mnt/q "$@") || fail "$found"
echo "found $found"
(
    sleep 1
    while sleep 0.5; do
        records canary /dev/vdb "$cycle" && echo "canary written"
        quayfs info /mnt/q --json | sed 's/.*"rounds":\([0-9]*\).*/rounds \1/'
    done
) &
# shellcheck disable=SC2086
exec records write /mnt/q $found
