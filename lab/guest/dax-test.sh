# The dax backend for real: MAP_SYNC on ext4-dax, libpmem, a killed daemon, recovery.
. /machine.sh

pmem_up
make_volume
quayfs mount /vol /mnt/q -o norestart || fail "mount"
is_dax

echo "writing, and killing the daemon while it happens"
mkdir /mnt/q/a /mnt/q/b
(
    i=0
    while i=$((i + 1)); do
        content $i >/mnt/q/a/$i 2>/dev/null && mv /mnt/q/a/$i /mnt/q/b/ 2>/dev/null || exit
        # From here on it must survive: nobody calls fsync.
        echo $i >/tmp/done.new && mv /tmp/done.new /tmp/done
    done
) &
writer=$!
tries=0
until [ "$(cat /tmp/done 2>/dev/null || echo 0)" -ge 60 ]; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "the writer does not get on"
    sleep 0.1
done
kill -9 "$(daemon_pid)"
wait $writer
acknowledged=$(cat /tmp/done)
ls /mnt/q >/dev/null 2>&1 && fail "the dead mount still answers"
quayfs umount /mnt/q || fail "umount of a dead mount"

quayfs mount /vol /mnt/q || fail "mount after the crash"
is_dax
grep recovered /vol/quayfs.log | tail -n 1
i=0
while [ $i -lt "$acknowledged" ]; do
    i=$((i + 1))
    content $i | cmp -s - /mnt/q/b/$i || fail "file $i of $acknowledged is damaged or gone"
done
echo "all $acknowledged acknowledged files are intact"

dd if=/dev/urandom of=/mnt/q/large bs=1M count=64 2>/dev/null || fail "writing a large file"
before=$(sha256sum </mnt/q/large)
rm -r /mnt/q/a
quayfs umount /mnt/q || fail "umount"
quayfs fsck /vol || fail "fsck: exit code $?"
quayfs mount /vol /mnt/q -o ro || fail "mount read-only"
[ "$(sha256sum </mnt/q/large)" = "$before" ] || fail "the large file changed"
[ "$(ls /mnt/q/b | wc -l)" -ge "$acknowledged" ] || fail "files are missing"
quayfs umount /mnt/q || fail "umount of a read-only mount"
echo "dax-test: passed"
