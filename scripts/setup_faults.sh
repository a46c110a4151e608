#!/usr/bin/env bash
# What the fault bench and its tests need of the system: stress-ng, PyTorch for the workloads (run by the
# system's Python, never a dependency of the product), a compiler, ip and tc. Root on Debian installs what
# is missing; others are told, and go on without, unless --strict.
set -euo pipefail

packages=(stress-ng python3-torch gcc libc6-dev iproute2 util-linux)
missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' \
        || missing+=("$package")
done
[ "${#missing[@]}" -eq 0 ] && exit 0

strict=$([ "${1:-}" = --strict ] && echo 1 || echo 0)
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "The fault bench is left out until these are installed: ${missing[*]}" >&2
    exit "$strict"
fi
echo "Installing ${missing[*]} ..."
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null || {
    echo "apt-get failed: the fault bench is left out" >&2
    exit "$strict"
}
