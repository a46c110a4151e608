#!/usr/bin/env bash
# Run a command as root under another of Debian's kernels: QEMU without KVM, a file system of this machine beneath
# it by 9p, read-only (what the command writes lies in memory), no network. Console: .tools/kernels.
#   scripts/kernel_vm.sh fetch 6.12             its newest package in apt's sources, unpacked; exit code 77: none
#   scripts/kernel_vm.sh run 6.12 COMMAND...    COMMAND's standard output and exit code, within MOST_S seconds (300)
# ARCH: amd64 (this machine's by default) or arm64. ROOT: a folder with that machine's Debian, / by default; the
# working folder is in its place there, too. APT_CONFIG: apt's sources of that machine. MEMORY: MiB (3072).
# PAGES=16k: arm64's kernel with pages of 16 KiB.
set -euo pipefail
deed=$1 version=$2
shift 2
scripts=$(cd "$(dirname "$0")" && pwd)
here=$(dpkg --print-architecture 2>/dev/null || echo none)
arch=${ARCH:-$here} root=${ROOT:-/}
flavour=$arch${PAGES:+-$PAGES}
folder=${scripts%/*}/.tools/kernels/$version-$flavour
# In this order; newer kernels have the first built in.
modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet 9pnet_virtio 9p overlay"

machine() {
    case $arch in
        amd64) qemu=(qemu-system-x86_64 -M q35 -cpu max) console=ttyS0 ;;
        # Pointer authentication in software takes init from 2 s to 9.
        arm64) qemu=(qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on) console=ttyAMA0 ;;
        *) echo "Linux $version: expected amd64 or arm64, got $arch" >&2; exit 77 ;;
    esac
}

fetch() {
    # The plain one: the one for clouds has no 9p.
    package=$(apt-cache search --names-only "^linux-image-${version//./\\.}\.[0-9][0-9.+deb-]*-$flavour-unsigned$" |
        cut -d ' ' -f 1 | sort -V | tail -n 1)
    [ -n "$package" ] || { echo "Linux $version: apt's sources have none for $flavour" >&2; exit 77; }
    [ "$(cat "$folder/package" 2>/dev/null)" != "$package" ] || return 0
    echo "Fetching $package into .tools/kernels ..." >&2
    rm -rf "$folder" && mkdir -p "$folder/guest"/{bin,mod,proc,sys,dev,ro,rw,new} && cd "$folder"
    if ! said=$(apt-get -qq -o APT::Sandbox::User=root download "$package:$arch" 2>&1); then
        "$scripts/say_failed.sh" "$package" "$said"
        exit 1
    fi
    # A pattern that nothing fits is a module that is built in.
    dpkg-deb --fsys-tarfile ./*.deb | tar -x --wildcards './boot/vmlinuz-*' \
        $(printf '*/kernel/*/%s.ko* ' $modules) 2>/dev/null || true
    mv boot/vmlinuz-* vmlinuz
    for name in $modules; do
        for found in $(find . -path "./guest" -prune -o -name "$name.ko*" -print); do
            xz -dc "$found" >"guest/mod/$name.ko" 2>/dev/null || cp "$found" "guest/mod/$name.ko"
        done
    done
    rm -rf ./*.deb boot lib usr
    echo "$package" >package
}

run() {
    cp "$root/bin/busybox" "$folder/guest/bin/busybox"
    install -m 755 "$scripts/kernel_vm_init.sh" "$folder/guest/init"
    echo "$modules" >"$folder/guest/modules"
    echo "$PWD" >"$folder/guest/work"
    { printf 'export PATH=%q HOME=/ PYTHONDONTWRITEBYTECODE=1; cd %q; exec' "$PATH" "$PWD"; printf ' %q' "$@"; } >"$folder/guest/command"
    (cd "$folder/guest" && find . | cpio -o -H newc --quiet | gzip -1) >"$folder/initramfs"
    rm -rf "$folder/said" && mkdir "$folder/said"
    shared() { printf -- '-virtfs local,path=%s,mount_tag=%s,security_model=none,multidevs=remap%s ' "$@"; }
    timeout "${MOST_S:-300}" "${qemu[@]}" -smp 2 -m "${MEMORY:-3072}" -accel tcg,thread=multi \
        -kernel "$folder/vmlinuz" -initrd "$folder/initramfs" -append "console=$console quiet panic=-1 mitigations=off" \
        $(shared "$root" root ,readonly=on; shared "$PWD" checkout ,readonly=on; shared "$folder/said" said "") \
        -display none -monitor none -nic none -no-reboot -serial "file:$folder/console" </dev/null || true
    cat "$folder/said/output" 2>/dev/null || true
    code=$(cat "$folder/said/code" 2>/dev/null || true)
    [ "${code:-1}" = 0 ] || tail -n 20 "$folder/console" >&2
    [ -n "$code" ] || echo "Linux $version: no end within ${MOST_S:-300} s" >&2
    exit "${code:-1}"
}
machine
"$deed" "$@"
