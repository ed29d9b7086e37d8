#!/bin/sh
# rsync.sh [DIRECTORY]: rsync -aHAX and tar there and back; then with the daemon killed in the middle.
. "$(dirname "$0")/lib.sh"

source=${1:-/usr/share}
from=$WORK/from
# What only some trees have: links, holes, lists, attributes, odd types and names, old and far times.
mkdir -p "$from"
rsync -aHAX "$source/" "$from/tree/"
mkdir "$from/odd"
cd "$from/odd"
echo text >file
ln file hard
ln -s file soft
ln -s "$(printf '%0999d' 0)" long
mkfifo pipe
mknod null c 1 3
truncate -s 10M hole
printf x | dd of=hole bs=1 seek=5M conv=notrunc status=none
touch "$(printf 'new\nline')" "$(printf '\377')" -- '-dash'
setfattr -n user.name -v value file
setfacl -m u:7:rw,g:8:- file
mkdir list
setfacl -d -m u:7:rwx list
chmod 6711 list
touch -d '1955-11-05 06:15:00.123456789' file
touch -d '2400-01-01' hole
cd /
same() {
    changes=$(rsync -aHAXn --checksum --delete --itemize-changes "$from/" "$MNT/$1/")
    [ -z "$changes" ] || fail "$2: $(echo "$changes" | head -5)"
    say "$2: nothing to copy"
}

volume 512M 8G
mount_volume
start=$(date +%s)
quietly rsync -aHAXS "$from/" "$MNT/copy/"
say "rsync: $(find "$from" | wc -l) files in $(($(date +%s) - start)) s"
quietly sh -c "tar -C '$MNT/copy' --acls --xattrs --sparse --format=posix -cf - . >'$MNT/all.tar'"
mkdir "$MNT/unpacked"
quietly tar -C "$MNT/unpacked" --acls --xattrs --xattrs-include='*' -xpf "$MNT/all.tar"
unmount
fsck_clean
mount_volume
same copy 'rsync, after a remount'
same unpacked 'tar there and back'
blocks=$(stat -c %b "$MNT/unpacked/odd/hole")
[ "$blocks" -le 64 ] || fail "the hole has $blocks blocks"
for round in 1 2 3; do
    rm -rf "$MNT/copy"
    interrupted "1.$round" rsync -aHAX "$from/" "$MNT/copy/"
    quietly rsync -aHAX --delete "$from/" "$MNT/copy/"
    same copy "after kill -9, $round"
done
unmount
fsck_clean --data
say 'fsck clean'
