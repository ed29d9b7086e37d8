# Sourced by the tests: what they share. Runs in the guest, under busybox.
fail() {
    echo "FAILED: $*"
    tail -n 20 /vol/quayfs.log 2>/dev/null
    exit 1
}

# A namespace fresh from the (emulated) factory is `raw`: it has no struct pages, so no DAX.
# Rebinding it as a pfn device that keeps them in DRAM makes it `fsdax`. That is written on it.
pmem_up() {
    nd=/sys/bus/nd
    tries=0
    until [ -b /dev/pmem0 ]; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || fail "no /dev/pmem0"
        sleep 0.1
    done
    [ "$(cat /sys/block/pmem0/queue/dax)" = 1 ] && return
    echo namespace0.0 >$nd/drivers/nd_pmem/unbind
    pfn=$nd/devices/pfn0.0
    echo ram >$pfn/mode
    echo 2097152 >$pfn/align
    cat /proc/sys/kernel/random/uuid >$pfn/uuid
    echo namespace0.0 >$pfn/namespace
    echo pfn0.0 >$nd/drivers/nd_pmem/bind
    [ "$(cat /sys/block/pmem0/queue/dax)" = 1 ] || fail "the namespace has no DAX"
}

# dax=always: only then does the kernel grant MAP_SYNC to every file.
mount_pmem() {
    mount -t ext4 -o dax=always /dev/pmem0 /mnt/pm || fail "cannot mount ext4 with DAX"
}

make_volume() {
    mkfs.ext4 -q -F -b 4096 /dev/pmem0 || fail "mkfs.ext4"
    mount_pmem
    quayfs mkfs /vol --pmem /mnt/pm/region --pmem-size ${region_size:-256M} --data /dev/vda || fail "quayfs mkfs"
}

daemon_pid() {
    quayfs info /mnt/q --json | sed 's/.*"pid":\([0-9]*\).*/\1/'
}

is_dax() {
    quayfs info /mnt/q --json | grep -q '"backend":"dax"' || fail "the backend is not dax"
}

# content NUMBER: bytes that only this number has; up to 200 kB.
content() {
    yes "file $1 of the quay" | head -c $(($1 * 7919 % 200000 + 1))
}
