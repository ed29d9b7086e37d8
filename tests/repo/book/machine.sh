# What the commands of the documents find, in a mount namespace: a disk on /srv, an empty partition /dev/nvme0n1p3 (and no
# other disk), the program in /usr/bin with its helpers, and an /etc whose changes go away with the namespace. $QUAYFS is
# the program, $ROOT the repository. Loop devices end with their last user.
truncate -s 4G disk
truncate -s 1G partition
mkfs.ext4 -q disk
mount -o loop disk /srv
part=$(losetup --find --show partition)
exec 9<"$part"
losetup --detach "$part"

mkdir dev over
mount -t tmpfs -o mode=755 none dev
for node in fuse null zero full random urandom tty loop-control cpu_dma_latency fd stdin stdout stderr; do
    [ ! -e "/dev/$node" ] || cp -a "/dev/$node" dev/
done
cp -a "$(findmnt --noheadings --output SOURCE /srv)" dev/
cp -a "$part" dev/nvme0n1p3
mkdir dev/shm dev/pts
mount --rbind /dev/shm dev/shm
mount --rbind /dev/pts dev/pts
mount --move dev /dev

mount -t tmpfs none over
for place in etc usr/bin usr/sbin var/log; do
    mkdir -p "over/up/$place" "over/work/$place"
    mount -t overlay none -o "lowerdir=/$place,upperdir=$PWD/over/up/$place,workdir=$PWD/over/work/$place" "/$place"
done
: >/etc/fstab
: >/usr/bin/quayfs
mount --bind "$QUAYFS" /usr/bin/quayfs
for name in mount.quayfs umount.quayfs mount.fuse.quayfs umount.fuse.quayfs fsck.quayfs mkfs.quayfs; do
    ln -sf /usr/bin/quayfs "/usr/sbin/$name"
done
mount -t tmpfs none /mnt
mkdir /mnt/q /srv/quayfs
cp -r "$ROOT/Makefile" "$ROOT/scripts" /srv/quayfs/
