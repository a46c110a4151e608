#!/usr/bin/env bash
# What the eBPF sources and their tests need of the system: libbpf to run, clang to build, BCC as the
# second loader, gcc for the stub libraries that tests probe, and the headers that tests compare calls with.
# Root on Debian installs what is missing; others are told, and go on without.
set -euo pipefail

packages=(libbpf1 libbpf-dev clang llvm make util-linux python3-bpfcc gcc g++ libc6-dev libstdc++6)
headers=(libbpfcc-dev libcap-dev bpftool)

# require WHAT_IS_LEFT_OUT PACKAGE...
require() {
    local without=$1 missing=() package
    for package in "${@:2}"; do
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' \
            || missing+=("$package")
    done
    [ "${#missing[@]}" -ne 0 ] || return 0
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "$without until these are installed: ${missing[*]}" >&2
        return 0
    fi
    echo "Installing ${missing[*]} ..."
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
        >/dev/null || echo "apt-get failed: $without" >&2
}

require "The eBPF source is left out" "${packages[@]}"
require "Some calls of C libraries are not compared with their headers" "${headers[@]}"

# BCC compiles on the host and looks for headers under the running kernel's release. Without its own
# package another version does: the programs read no kernel struct, and a check at load says so.
modules="/lib/modules/$(uname -r)"
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && [ ! -e "$modules/build" ]; then
    echo "Installing kernel headers for BCC ..."
    export DEBIAN_FRONTEND=noninteractive
    { apt-get install -y -qq --no-install-recommends "linux-headers-$(uname -r)" \
        || apt-get install -y -qq --no-install-recommends "linux-headers-$(dpkg --print-architecture)"; } \
        >/dev/null 2>&1 || echo "No kernel headers could be installed: the BCC loader is left out" >&2
    newest=$(find /usr/src -maxdepth 1 -name 'linux-headers-*' ! -name '*-common*' | sort -V | tail -n 1)
    if [ ! -e "$modules/build" ] && [ -n "$newest" ]; then
        mkdir -p "$modules"
        ln -s "$newest" "$modules/build"
        ln -s "${newest%-*}-common" "$modules/source"
    fi
fi
