#!/bin/bash
# A machine with persistent memory, for the one backend that an ordinary host cannot test: `dax`.
#
# Boots a small QEMU guest with an emulated NVDIMM and runs the tests in lab/guest in it. Software
# emulation is enough, so it needs neither KVM nor root at run time (root only to install packages).
#
#   lab/run.sh setup    install the packages and fetch Debian's kernel
#   lab/run.sh build    build quayfs and the guest's kernel and initrd
#   lab/run.sh test     boot and test: dax-test.sh, then power-test.sh across a power failure
#   lab/run.sh          all three
#
# Everything it writes is in lab/work. LAB_TIMEOUT=SECONDS limits a boot (default 300).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$here")
work=$here/work
root=$work/root
kernel=$work/kernel

# Modules that the guest needs, in the order of loading; what they depend on comes along. The
# crc32c one serves ext4, which asks for it in a way that busybox's modprobe does not follow.
modules="crc32c_generic nfit nd_pmem virtio_pci virtio_blk ext4 fuse"
programs="/usr/sbin/mkfs.ext4"
pmem_size=512M

say() { printf 'lab: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

setup() {
    local p
    "$top/scripts/packages" qemu-system-x86 seabios busybox-static cpio kmod xz-utils binutils \
        e2fsprogs libpmem-dev pkg-config gcc
    mkdir -p "$work"
    [ -d "$kernel/boot" ] && return
    p=$(kernel_package)
    [ -n "$p" ] || die "apt knows no linux-image-amd64: on a Debian system run apt-get update"
    say "fetching $p"
    cd "$work"
    rm -rf kernel.new
    apt-get -qq -o APT::Sandbox::User=root download "$p"
    dpkg-deb -x "$p"_*.deb kernel.new
    rm "$p"_*.deb
    mv kernel.new "$kernel"
    cd "$top"
}

# The package that Debian's newest kernel is in.
kernel_package() {
    apt-cache depends linux-image-amd64 2>/dev/null |
        sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1
}

# Copies a program and every library it loads to the same place in the guest.
install_program() {
    local file
    install -D "$1" "$root$2"
    for file in $(ldd "$1" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$file")"
        cp -Ln "$file" "$root$file" 2>/dev/null || true
    done
}

# Prints the files of a module and of all it depends on, from the package's own table: the host's
# modprobe would leave out what the host's kernel has built in.
module_files() {
    awk -F: -v want="$1" '{
        name = $1; sub(/.*\//, "", name); sub(/\.ko.*/, "", name); gsub("-", "_", name)
        if (name == want) print $1 $2
    }' "$lib/modules.dep"
}

build() {
    [ -d "$kernel/boot" ] || die "no kernel: run \`lab/run.sh setup\` first"
    local m file program offset
    release=$(ls "$kernel/lib/modules" | head -1)
    lib=$kernel/lib/modules/$release
    (cd "$top" && cargo build --release --bin quayfs)

    # The guest starts several times faster if the emulated CPU need not unpack its own kernel.
    if [ ! -e "$work/vmlinux" ]; then
        offset=$(grep -abom1 $'\xfd7zXZ' "$kernel/boot/vmlinuz-$release" | cut -d: -f1)
        # What follows the stream makes xz complain at its end.
        { tail -c "+$((offset + 1))" "$kernel/boot/vmlinuz-$release" | xz -dcq 2>/dev/null >"$work/vmlinux.new"; } || true
        strip -R .BTF -R .BTF_ids "$work/vmlinux.new" 2>/dev/null || true
        mv "$work/vmlinux.new" "$work/vmlinux"
    fi

    rm -rf "$root"
    mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,run,etc,mnt/pm,mnt/q,lib/modules/"$release"}
    cp /bin/busybox "$root/bin/"
    depmod -b "$kernel" "$release"
    for m in $modules; do
        for file in $(module_files "$m" | tr ' ' '\n'); do
            install -D -m 644 "$lib/$file" "$root/lib/modules/$release/$(basename "$file")"
        done
    done
    find "$root/lib/modules" -name '*.ko' -exec strip --strip-debug {} +
    cp "$lib"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$release/"
    depmod -b "$root" "$release"
    for program in $programs; do install_program "$program" "$program"; done
    cp -L /etc/mke2fs.conf "$root/etc/"
    install_program "${CARGO_TARGET_DIR:-$top/target}/release/quayfs" /bin/quayfs
    strip --strip-debug "$root/bin/quayfs"
    cp "$here"/guest/*.sh "$root/"
    cat >"$root/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
ln -s /proc/self/fd /dev/fd
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
for m in $modules; do modprobe \$m || echo "no module \$m"; done
set -- \$(sed 's/.*lab=\([^ ]*\).*/\1/; s/:/ /g' /proc/cmdline)
sh /"\$@"
echo "LAB-RESULT \$?"
sync; poweroff -f
INIT
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet) >"$work/initrd"
    say "built $(du -h "$work/initrd" | cut -f1) of initrd, kernel $release"
}

# boot NAME:ARG... [PATTERN]: boots the guest on the devices in lab/work and runs a script of
# lab/guest in it; its output comes to the terminal and to lab/work/console. Returns the script's
# exit code. With PATTERN the power fails as soon as the output matches it.
boot() {
    local qemu deadline=$((SECONDS + ${LAB_TIMEOUT:-300})) result
    : >"$work/console"
    (
        cd "$work"
        exec qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
            -machine pc,nvdimm=on,nvdimm-persistence=mem-ctrl -accel tcg,thread=multi \
            -cpu max,la57=off -smp 2 -m 768M,slots=2,maxmem=4G \
            -object memory-backend-file,id=pm,share=on,mem-path=pmem,size=$pmem_size \
            -device nvdimm,memdev=pm \
            -drive if=none,id=disk,file=disk,format=raw -device virtio-blk-pci,drive=disk \
            -kernel vmlinux -initrd initrd -serial file:console \
            -append "console=ttyS0 loglevel=2 panic=-1 nokaslr mitigations=off lab=$1" \
            </dev/null >qemu.log 2>&1
    ) &
    qemu=$!
    # shellcheck disable=SC2064
    trap "kill -9 $qemu 2>/dev/null || true" EXIT
    while kill -0 $qemu 2>/dev/null; do
        if [ -n "${2:-}" ] && grep -q "$2" "$work/console"; then
            kill -9 $qemu
            say "power failed"
            break
        fi
        if [ $SECONDS -gt $deadline ]; then
            kill -9 $qemu
            say "the guest took too long"
            break
        fi
        sleep 0.1
    done
    wait $qemu 2>/dev/null || true
    trap - EXIT
    tr -d '\r' <"$work/console" | grep -v '^LAB-RESULT' || cat "$work/qemu.log" >&2
    result=$(tr -d '\r' <"$work/console" | sed -n 's/^LAB-RESULT //p')
    return "${result:-125}"
}

new_devices() {
    rm -f "$work/pmem" "$work/disk"
    truncate -s $pmem_size "$work/pmem"
    truncate -s 2G "$work/disk"
}

run_tests() {
    [ -e "$work/initrd" ] || die "nothing built: run \`lab/run.sh build\` first"
    local acknowledged
    new_devices
    say "dax-test.sh"
    boot dax-test.sh || die "dax-test.sh failed with $?"

    new_devices
    say "power-test.sh: writing until the power fails"
    boot power-test.sh:write '^acknowledged 40' || true
    # The last line may have been cut by the failure itself.
    acknowledged=$(tr -d '\r' <"$work/console" | sed '$d' | sed -n 's/^acknowledged //p' | tail -1)
    [ -n "$acknowledged" ] || die "power-test.sh wrote nothing"
    say "power-test.sh: $acknowledged files were acknowledged, looking for them"
    boot "power-test.sh:verify:$acknowledged" || die "power-test.sh failed with $?"
    say "all passed"
}

case ${1:-all} in
setup) setup ;;
build) build ;;
test) run_tests ;;
all) setup && build && run_tests ;;
*) sed -n '2,13s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
