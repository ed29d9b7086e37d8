#!/bin/sh
# debootstrap.sh [SUITE]: a Debian on the mount, which installs packages; the daemon dies under that.
. "$(dirname "$0")/lib.sh"

suite=${1:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
NEEDS=suid,dev
# Wherever this machine gets its packages from.
mirror=$(apt-get indextargets --format '$(SITE)' | head -1)
root=$MNT/debian
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"; }
sound() {
    [ -z "$(inside dpkg --audit)" ] || fail "$1: $(inside dpkg --audit)"
    changed=$(inside dpkg --verify | grep -v ' /usr/share/\(doc\|man\|locale\)/' || true)
    [ -z "$changed" ] || fail "$1: $changed"
    say "$1: dpkg --audit and --verify clean, $(inside dpkg-query -f '.' -W | wc -c) packages"
}

volume 512M 4G
mount_volume
start=$(date +%s)
quietly debootstrap --variant=minbase "$suite" "$root" "$mirror"
say "debootstrap: $(find "$root" -xdev | wc -l) files in $(($(date +%s) - start)) s"
cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
for conf in /etc/apt/apt.conf.d/*; do
    grep -qi proxy "$conf" && cp "$conf" "$root/etc/apt/apt.conf.d/" || true
done
unmount
fsck_clean
mount_volume
sound 'after a remount'
quietly inside apt-get -qq update
quietly inside apt-get -qq install -y --no-install-recommends --download-only gcc python3
for round in 1 2 3; do
    interrupted "2.$round" inside apt-get -qq install -y --no-install-recommends gcc python3
    quietly inside dpkg --configure -a
    quietly inside apt-get -qq install -y --no-install-recommends -f gcc python3
    sound "after kill -9, $round"
    quietly inside apt-get -qq purge -y --autoremove gcc python3
    quietly inside apt-get -qq install -y --no-install-recommends --download-only gcc python3
done
unmount
fsck_clean --data
say 'fsck clean'
