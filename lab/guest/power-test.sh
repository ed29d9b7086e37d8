# The whole machine disappears at once: `write` runs until then, `verify N` comes after it and
# finds the first N files, which nobody ever synced.
. /machine.sh

pmem_up
if [ "$1" = write ]; then
    make_volume
    quayfs mount /vol /mnt/q || fail "mount"
    is_dax
    # The volume's directory is in the guest's memory: keep its links where the next boot looks.
    i=0
    while i=$((i + 1)); do
        content $i >/mnt/q/$i || fail "writing $i"
        echo "acknowledged $i"
    done
fi

mount_pmem
mkdir /vol
ln -s /mnt/pm/region /vol/pmem
ln -s /dev/vda /vol/data
quayfs mount /vol /mnt/q || fail "mount after the power failure"
is_dax
grep recovered /vol/quayfs.log
i=0
while [ $i -lt "$2" ]; do
    i=$((i + 1))
    content $i | cmp -s - /mnt/q/$i || fail "file $i of $2 is damaged or gone"
done
quayfs umount /mnt/q || fail "umount"
quayfs fsck /vol || fail "fsck: exit code $?"
echo "power-test: passed"
