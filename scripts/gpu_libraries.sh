#!/usr/bin/env bash
# NVIDIA's driver libraries (libcuda, libnvidia-ml) of Debian's non-free component, unpacked into
# .tools/gpu-libraries for tests: nothing is installed, and nothing but tests looks there.
# They come from the mirror that this machine's own package lists name. Exit code 77: tests beside them
# are to be skipped, as they cannot be had here; under CI one that could not fetch them fails.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/.tools/gpu-libraries
packages=(libcuda1 libnvidia-ml1)

[ -e "$target/.complete" ] && exit 0
refuse() { echo "Tests beside the real GPU driver: left out, $1" >&2; exit 77; }
[ "$(uname -m)" = x86_64 ] || refuse "as it is for x86-64"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || refuse "which needs Debian's apt-get and dpkg-deb"

source=$(apt-get indextargets --format '$(ORIGIN)|$(COMPONENT)|$(CODENAME)|$(REPO_URI)' 'Created-By: Packages' |
    sed -n -E 's/^Debian\|main\|([a-z]+)\|(.*)$/\2 \1/p' | head -n 1)
[ -n "$source" ] || refuse "as this machine's package lists name no mirror of Debian"

# Lists and cache of its own, so that it needs no root and changes nothing of the system's.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work"/{lists,cache/archives}/partial "$work/unpacked" "$target"
echo "deb $source non-free" >"$work/sources.list"
cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "";
END
export APT_CONFIG=$work/apt.conf
if ! said=$(apt-get -qq update 2>&1 && cd "$work" && apt-get -qq download "${packages[@]}" 2>&1); then
    scripts/say_failed.sh "Tests beside the real GPU driver: left out, as ${packages[*]} could not be fetched" "$said"
    [ -z "${CI:-}" ] && exit 77
    exit 1
fi
for package in "$work"/*.deb; do
    dpkg-deb --extract "$package" "$work/unpacked"
done
find "$work/unpacked" -name 'lib*.so.*' -exec cp --no-dereference {} "$target" \;
touch "$target/.complete"
