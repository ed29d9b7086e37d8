# A mount that the kernel's NFS server exports, and the kernel's client mounts, both in this guest.
. /machine.sh

mkdir -p /n /proc/fs/nfsd /var/lib/nfs/v4recovery /var/log
printf 'nfs 2049/tcp\n' >/etc/services
printf 'tcp 6 TCP\nudp 17 UDP\n' >/etc/protocols
printf '127.0.0.1 localhost\n' >/etc/hosts
printf 'tcp tpi_cots_ord v inet tcp - -\nudp tpi_clts v inet udp - -\n' >/etc/netconfig

options=allow_other,norestart,commit=300
quayfs mkfs /dev/vda >/dev/null || fail "quayfs mkfs"
quayfs mount /dev/vda /mnt/q -o $options,durability=op || fail "mount"

mount -t nfsd nfsd /proc/fs/nfsd || fail "no nfsd"
touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
ifconfig lo 127.0.0.1 up
export_it() { exportfs -o rw,sync,no_root_squash,no_subtree_check$1 127.0.0.1:/mnt/q; }

export_it "" 2>&1 | grep -q 'requires fsid= for NFS export' || fail "an export without fsid= is not refused"
exportfs -ua
export_it ,fsid=0 || fail "exportfs"
rpc.mountd -N 3 || fail "rpc.mountd"
rpc.nfsd -N 3 -V 4.2 --lease-time 10 --grace-time 10 4 || fail "rpc.nfsd"
/sbin/mount.nfs 127.0.0.1:/ /n -o vers=4.2,hard || fail "the client cannot mount"

echo "files, names, attributes"
mkdir /n/dir || fail "mkdir"
content 1 >/n/dir/one || fail "write"
content 1 | cmp - /mnt/q/dir/one || fail "the server has other content"
mv /n/dir/one /n/dir/two && ln -s two /n/dir/link && ln /n/dir/two /n/dir/hard || fail "names"
chown 1000:1000 /n/dir/two && chmod 640 /n/dir/two || fail "attributes"
[ "$(stat -c '%u %g %a %h' /mnt/q/dir/two)" = "1000 1000 640 2" ] || fail "attributes: $(stat /mnt/q/dir/two)"
i=0
while [ $i -lt 500 ]; do i=$((i + 1)); : >/n/dir/f$i || fail "create"; done
[ "$(ls /n/dir | wc -l)" = 503 ] || fail "a listing of $(ls /n/dir | wc -l) names"
# The server looks for file systems that name `user.` among what they support, and FUSE names nothing.
setfattr -n user.a -v b /n/dir/two 2>&1 | grep -q 'not supported' || fail "attributes of users are exported: say so"
setfattr -n user.a -v b /mnt/q/dir/two || fail "an attribute, without NFS"

echo "a removed directory is stale"
mkdir /n/gone
(cd /n/gone && rm -r /mnt/q/gone && mkdir /mnt/q/again && ls . 2>&1) | grep -qi 'stale\|no such' || fail "not stale"

echo "what a sync export asks for after a change of names"
commits() { quayfs info /mnt/q --json | sed 's/.*"commits":\([0-9]*\).*/\1/'; }
remount() {
    exportfs -ua && exportfs -f
    tries=0
    until umount /mnt/q 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || fail "the server keeps the file system in use"
        sleep 0.1
    done
    # umount(8) does not wait for the daemon, the next mount does.
    quayfs mount /dev/vda /mnt/q -o $1 || fail "mount again"
    export_it ,fsid=0 || fail "export again"
}
remount $options,durability=commit
content 1 | cmp - /n/dir/two || fail "the client's handles are not valid on the new mount"
first=$(commits)
mkdir /n/names && mv /n/names /n/moved || fail "names"
[ "$(commits)" = "$first" ] || echo "changes of names are committed"
: >/n/moved/file && content 2 >/n/moved/file && sync /n/moved/file || fail "a file, synced"
[ "$(commits)" -gt "$first" ] || fail "an fsync of the client is no commit"
echo "commits: $first before, $(commits) after an fsync"

echo "the daemon dies"
kill -9 "$(daemon_pid)"
ls /n/dir >/dev/null 2>&1 && echo "the client answers from its cache"
exportfs -ua && exportfs -f
quayfs umount -l /mnt/q || fail "umount of a dead mount"
tries=0
until quayfs mount /dev/vda /mnt/q -o $options,durability=op 2>/tmp/why; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || fail "mount after the death: $(cat /tmp/why)"
    sleep 0.1
done
export_it ,fsid=0 || fail "export after the death"
content 2 | cmp - /n/moved/file || fail "what was synced is not there, or its handle is not valid"

umount /n || fail "umount of the client"
rpc.nfsd 0
exportfs -ua && exportfs -f
sleep 1
quayfs umount /mnt/q || fail "umount"
quayfs fsck --data /dev/vda || fail "fsck: exit code $?"
echo "nfs-test: passed"
