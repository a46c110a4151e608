#!/usr/bin/env bash
# Build the Debian packages of the agent and of the aggregators, each with an environment of its own:
# the packages of its lock file by hash, the wheel, units, users and configurations.
#   scripts/deb.sh [FOLDER]     dist/ without; REVISION=2 for a second build of a version; MACHINE=aarch64 for another machine
# The same commit gives the same bytes, on one release of Debian.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-dist}")
revision=${REVISION:-1}
if ! command -v dpkg-deb >/dev/null || ! /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "make deb: needs Debian's dpkg-deb, and its Python 3.11 or later as /usr/bin/python3" >&2
    exit 77
fi
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheel=$(scripts/wheel.sh "$work")
version=$(basename "$wheel" | cut -d- -f2)-$revision
case ${MACHINE:-$(uname -m)} in
    "$(uname -m)") architecture=$(dpkg --print-architecture) ;;
    aarch64) architecture=arm64 ;;
    *) echo "make deb: expected MACHINE=aarch64 or none, got $MACHINE" >&2; exit 2 ;;
esac
minor=$(/usr/bin/python3 -c 'import sys; print(sys.version_info.minor)')

# The users of some programs alone, from the one list of all.
users() {
    local name
    printf 'g pointillist -\n'
    for name in "$@"; do
        grep -E "^[um] pointillist-$name " deploy/systemd/pointillist.sysusers.conf
    done
}

# Units begin the program of their own package, whichever command people type.
unit() {
    sed "s|/usr/bin/env pointillist|/usr/lib/pointillist/$1/bin/pointillist|" "deploy/systemd/$2.service" \
        >"$root/usr/lib/systemd/system/$2.service"
}

# package PROGRAM LOCK PRIORITY DEPENDS DESCRIPTION UNIT...
package() {
    local program=$1 lock=$2 priority=$3 depends=$4 description=$5 name="pointillist-$1"
    shift 5
    root="$work/$name"
    mkdir -p "$root"/{DEBIAN,etc/pointillist,usr/lib/{systemd/system,sysusers.d,pointillist},usr/share/doc/"$name"}
    scripts/program_env.sh "$lock" "$wheel" "$root/usr/lib/pointillist/$program"
    for one in "$@"; do
        unit "$program" "pointillist-$one"
    done
    users "$@" >"$root/usr/lib/sysusers.d/$name.conf"
    for one in "$@"; do
        [ ! -e "deploy/config/$one.toml" ] || cp "deploy/config/$one.toml" "$root/etc/pointillist/"
    done
    if [ "$program" = aggregator ]; then
        mkdir -p "$root/etc/default"
        cp deploy/debian/pointillist-web.default "$root/etc/default/pointillist-web"
    fi
    cp deploy/debian/copyright CHANGELOG.md "$root/usr/share/doc/$name/"
    (cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
    for script in postinst prerm postrm; do
        sed -e "s/@PROGRAM@/$program/g; s/@PRIORITY@/$priority/g" -e "s/@UNITS@/${*/#/pointillist-}/g" \
            "deploy/debian/$script" >"$root/DEBIAN/$script"
        chmod 755 "$root/DEBIAN/$script"
    done
    cat >"$root/DEBIAN/control" <<CONTROL
Package: $name
Version: $version
Architecture: $architecture
Section: admin
Priority: optional
Maintainer: The Pointillist project <packages@pointillist.invalid>
Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), systemd | systemd-sysusers$depends
Description: $description
CONTROL
    chmod -R u=rwX,go=rX "$root"
    chmod 755 "$root"/DEBIAN/p*
    mkdir -p "$out"
    # One thread: with more the bytes would depend on how many cores there are.
    dpkg-deb --root-owner-group -Zzstd -z6 --threads-max=1 --build "$root" "$out" >/dev/null
    rm -rf "$root"
    echo "$out/${name}_${version}_$architecture.deb"
}

package agent agent 20 ", libbpf1" "Pointillist agent: private telemetry of a GPU host
 Watches which GPU kernels run on a host and why they are slow, and publishes
 masked, noisy counts that no single party can read." \
    agent
package aggregator parties 30 "" "Pointillist aggregators: Leader, Helper, witness and web
 Receive masked reports of many hosts and release noisy sums over large
 cohorts; pages and an API over what was released." \
    leader helper witness web
