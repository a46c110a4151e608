#!/usr/bin/env bash
# Lay a Debian into a folder by debootstrap, as root. For another machine than this no program of it is run: its packages are
# unpacked, and what their scripts would do is done here as far as Python and TLS need it.
#   scripts/debian_root.sh MACHINE SUITE FOLDER PACKAGE,PACKAGE     MACHINE as uname -m has it
set -euo pipefail
machine=$1 suite=$2 root=$3 packages=$4
rm -rf --one-file-system "$root"
foreign=()
[ "$machine" = "$(uname -m)" ] || foreign=(--foreign --arch=arm64)
# In mounts of its own, so that what debootstrap mounts is gone with it.
unshare --mount debootstrap "${foreign[@]}" --variant=minbase --include="$packages" "$suite" "$root"
[ ${#foreign[@]} -gt 0 ] || exit 0
for package in "$root"/var/cache/apt/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
    dpkg-deb --field "$package" | sed '/^Package:/a Status: install ok unpacked'
    echo
done >"$root/var/lib/dpkg/status"
rm -rf "$root"/debootstrap "$root"/proc "$root"/sys
mkdir "$root"/proc "$root"/sys
cp "$root"/usr/share/libc-bin/nsswitch.conf "$root"/etc
cp "$root"/usr/share/base-passwd/passwd.master "$root"/etc/passwd
cp "$root"/usr/share/base-passwd/group.master "$root"/etc/group
mkdir -p "$root"/etc/ssl/certs
cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root"/etc/ssl/certs/ca-certificates.crt
