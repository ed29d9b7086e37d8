#!/bin/bash
# A machine with persistent memory, for the one backend that an ordinary host cannot test: `dax`.
#
# Boots a small QEMU guest with an emulated NVDIMM and runs the tests in lab/guest in it. Software
# emulation is enough, so it needs neither KVM nor root at run time (root only to install packages).
#
#   lab/run.sh setup    install the packages and fetch Debian's kernel
#   lab/run.sh build    build quayfs and the guest's kernel and initrd
#   lab/run.sh test     boot and test: dax-test.sh, then power-test.sh across a power failure
#   lab/run.sh kills N  kill the machine N times while it writes, and check what it acknowledged;
#                       SEED=1 decides how long each life is
#   lab/run.sh nfs      build with the kernel's NFS server, and test a mount that it exports
#   lab/run.sh          the first three
#
# Everything it writes is in lab/work. LAB_TIMEOUT=SECONDS limits a boot (default 300). LAB_ACCEL=kvm is faster where there
# is KVM.
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
# Drives of the guest.
# shellcheck disable=SC2054
drives=(-drive if=none,id=disk,file=disk,format=raw -device virtio-blk-pci,drive=disk)

say() { printf 'lab: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

setup() {
    local p
    "$top/scripts/packages" qemu-system-x86 seabios busybox-static cpio kmod xz-utils binutils \
        e2fsprogs qemu-utils libpmem-dev pkg-config gcc
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
    rustc --edition 2024 -O -o "$work/records" "$here/guest/records.rs"
    install_program "$work/records" /bin/records
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

# boot NAME:ARG... [PATTERN [DELAY]]: boots the guest on the devices in lab/work and runs a script of
# lab/guest in it; its output comes to the terminal and to lab/work/console. Returns the script's
# exit code. With PATTERN the power fails as soon as the output matches it, or DELAY seconds later.
boot() {
    local qemu deadline=$((SECONDS + ${LAB_TIMEOUT:-300})) result
    : >"$work/console"
    (
        cd "$work"
        exec qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot \
            -machine pc,nvdimm=on,nvdimm-persistence=mem-ctrl -accel "${LAB_ACCEL:-tcg,thread=multi}" \
            -cpu max,la57=off -smp 2 -m 768M,slots=2,maxmem=4G \
            -object memory-backend-file,id=pm,share=on,mem-path=pmem,size=$pmem_size \
            -device nvdimm,memdev=pm \
            "${drives[@]}" \
            -kernel vmlinux -initrd initrd -serial file:console \
            -append "console=ttyS0 loglevel=2 panic=-1 nokaslr mitigations=off lab=$1" \
            </dev/null >qemu.log 2>&1
    ) &
    qemu=$!
    # shellcheck disable=SC2064
    trap "kill -9 $qemu 2>/dev/null || true" EXIT
    while kill -0 $qemu 2>/dev/null; do
        if [ -n "${2:-}" ] && grep -q "$2" "$work/console"; then
            sleep "${3:-0}"
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
    tr -d '\r' <"$work/console" | grep -Ev '^(LAB-RESULT|ack )' || cat "$work/qemu.log" >&2
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

# Makes empty overlays: what a disk's image gets to know about them before it is flushed is in
# QEMU's memory, so that writes that nobody flushed die with it.
new_overlays() {
    local name
    for name in disk canary; do
        rm -f "$work/$name.qcow2"
        qemu-img create -q -f qcow2 -F raw -b "$name" "$work/$name.qcow2"
    done
}

# run_kills N: N lives, each with what the last one left.
run_kills() {
    [ -e "$work/initrd" ] || die "nothing built: run \`lab/run.sh build\` first"
    local cycle w name acks=(0 0 0) script=kill-test.sh:first:1 pattern delay total=0 rounds=0 recoveries=0
    local unflushed=0 lost=0 canary=0
    RANDOM=${SEED:-1}
    new_devices
    rm -f "$work/canary"
    truncate -s 1M "$work/canary"
    # shellcheck disable=SC2054
    drives=(-drive if=none,id=disk,file=disk.qcow2,format=qcow2,cache=writeback
        -device virtio-blk-pci,drive=disk
        -drive if=none,id=canary,file=canary.qcow2,format=qcow2,cache=writeback
        -device virtio-blk-pci,drive=canary)
    for cycle in $(seq "$1"); do
        new_overlays
        # Now and then in the middle of recovery, or before it.
        if [ "$cycle" -gt 1 ] && [ $((RANDOM % 4)) = 0 ]; then
            pattern='^recovering' delay=$((RANDOM % 2)).$((RANDOM % 10))
            recoveries=$((recoveries + 1))
        else
            pattern='^ack 0' delay=$((RANDOM % 12)).$((RANDOM % 10))
        fi
        say "life $cycle of $1: $script, the power fails $delay s after $pattern"
        boot "$script" "$pattern" "$delay" || true
        check_life
        # What the disk lost with QEMU stays lost; what it knew becomes part of it.
        for name in disk canary; do qemu-img commit -q "$work/$name.qcow2"; done
        script=kill-test.sh:again:$((cycle + 1)):${acks[0]}:${acks[1]}:${acks[2]}
    done
    for w in 0 1 2; do total=$((total + acks[w])); done
    new_overlays
    say "the last look"
    pattern='^found'
    boot "$script" "$pattern" || true
    check_life
    say "$1 kills (seed ${SEED:-1}), $recoveries of them about recovery: $total operations acknowledged, 0 lost," \
        "0 findings of fsck, $rounds checkpoint rounds; a write that nobody flushed lost in $lost of $unflushed"
}

# Reads the console of a life that has ended: nothing failed, and what has been acknowledged.
check_life() {
    local text n
    # The last line may have been cut by the failure itself.
    text=$(tr -d '\r' <"$work/console" | sed '$d')
    ! grep -qE '^(FAILED|finding|LAB-RESULT)|panic' <<<"$text" || die "life $cycle failed: $script"
    grep -qE "$pattern" "$work/console" || die "life $cycle came to nothing: $script"
    for w in 0 1 2; do
        n=$(sed -n "s/^ack $w \([0-9]*\)$/\1/p" <<<"$text" | tail -1)
        # Without an acknowledgement what was found has to stay.
        [ -n "$n" ] || n=$(sed -n 's/^found //p' <<<"$text" | cut -d' ' -f$((w + 1)))
        acks[w]=${n:-${acks[w]}}
    done
    n=$(sed -n 's/^rounds //p' <<<"$text" | tail -1)
    rounds=$((rounds + ${n:-0}))
    if [ "$canary" = 1 ]; then
        unflushed=$((unflushed + 1))
        ! grep -q '^canary 0$' <<<"$text" || lost=$((lost + 1))
    fi
    canary=0
    ! grep -q '^canary written' <<<"$text" || canary=1
}

# A guest with another file system's server and client in it.
run_nfs() {
    "$top/scripts/packages" nfs-kernel-server nfs-common attr
    modules="$modules nfsd nfs nfsv4"
    programs="$programs /usr/sbin/exportfs /usr/sbin/rpc.mountd /usr/sbin/rpc.nfsd /sbin/mount.nfs /usr/bin/setfattr"
    build
    new_devices
    say "nfs-test.sh"
    boot nfs-test.sh || die "nfs-test.sh failed with $?"
    say "passed"
}

case ${1:-all} in
setup) setup ;;
build) build ;;
test) run_tests ;;
kills) run_kills "${2:-20}" ;;
nfs) setup && run_nfs ;;
all) setup && build && run_tests ;;
*) sed -n '2,17s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
