#!/bin/sh
# tree.sh DIRECTORY|ARCHIVE: is a tree what it was after copy, remount and a death?
. "$(dirname "$0")/lib.sh"

source=${1:?directory or archive}
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); }
shape() { (cd "$1" && find . -printf '%y %m %n %s %l %T@ %p\n' | grep -v '^d' | sort); }

mkdir "$WORK/reference"
case $source in
*.deb) dpkg-deb --fsys-tarfile "$source" | tar -x -C "$WORK/reference" ;;
*.tar*) tar -xf "$source" -C "$WORK/reference" ;;
*) cp -a "$source" "$WORK/reference/" ;;
esac
# A distribution's package of sources holds an archive once more.
for inner in $(find "$WORK/reference" -name 'linux-source-*.tar.xz'); do
    tar -xf "$inner" -C "$WORK/reference" && rm "$inner"
done
sums "$WORK/reference" >"$WORK/sums"
shape "$WORK/reference" >"$WORK/shape"
files=$(wc -l <"$WORK/sums")

volume 1G 6G
mount_volume
same() {
    sums "$MNT/reference" | cmp -s - "$WORK/sums" || fail "$1: the contents differ"
    shape "$MNT/reference" | cmp -s - "$WORK/shape" || fail "$1: types, modes, links or times differ"
    say "$files files identical $1"
}
start=$(date +%s)
cp -a "$WORK/reference" "$MNT/"
say "$files files copied in $(($(date +%s) - start)) s"
unmount
mount_volume
same 'after unmount and mount'
cp -a "$WORK/reference" "$MNT/again"
kill_daemon
mount_volume
same 'after kill -9'
sums "$MNT/again" | cmp -s - "$WORK/sums" || fail 'the second copy differs after kill -9'
unmount
fsck_clean --data
say 'fsck clean'
