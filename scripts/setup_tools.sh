#!/usr/bin/env bash
# What tests and benches need of the system: libbpf and BCC with kernel headers for the eBPF sources,
# compilers for the programs that are probed, PostgreSQL for a witness in it, Prometheus for alerts, a browser for pages, what the fault bench loads a host with, PyTorch for its
# workloads (run by the system's Python, never a dependency of the product).
# All that root would install is said first. What is missing and cannot be installed is said; what
# needs it is then left out.
set -euo pipefail
cd "$(dirname "$0")"

monitors=(prometheus prometheus-alertmanager)
groups=(
    "Tests of eBPF: libbpf1 libbpf-dev clang llvm make util-linux python3-bpfcc gcc g++ libc6-dev libstdc++6"
    "Comparing calls of C libraries with their headers: libbpfcc-dev libcap-dev bpftool"
    "Tests of a witness in PostgreSQL: postgresql"
    "Tests of pages in a browser: chromium"
    "Tests of the fault bench: stress-ng python3-torch gcc libc6-dev iproute2 util-linux"
)
command -v prometheus >/dev/null || groups+=("Tests of alerts and dashboards: ${monitors[*]}")
read -ra packages <<<"${groups[*]#*: }"
missing=$(./apt.sh --missing "${packages[@]}")
if [ "$(id -u)" -eq 0 ]; then
    [ -z "$missing" ] || echo "Tests and benches: as root this installs $missing, and kernel headers if there are none." >&2
    getent group pointillist >/dev/null ||
        echo "Tests and benches: as root they make the group pointillist and a user of the system for each role." >&2
fi
for group in "${groups[@]}"; do
    read -ra packages <<<"${group#*: }"
    ./apt.sh "${group%%: *}" "${packages[@]}" || true
done
if [[ "$missing" == *prometheus* && -d /run/systemd/system && "$(id -u)" -eq 0 ]]; then
    # Tests start their own: what the packages have just started would hold ports and run on.
    systemctl disable --now "${monitors[@]}" >/dev/null 2>&1 || true
fi

# BCC compiles on the host and looks for headers under the running kernel's release. Without its own
# package another version does: the programs read no kernel struct, and a check at load says so.
modules="/lib/modules/$(uname -r)"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || [ -e "$modules/build" ]; then
    exit 0
fi
own="linux-headers-$(uname -r)"
apt-cache show "$own" >/dev/null 2>&1 || own="linux-headers-$(dpkg --print-architecture)"
./apt.sh "Tests of the BCC loader" "$own" || exit 0
newest=$(find /usr/src -maxdepth 1 -name 'linux-headers-*' ! -name '*-common*' | sort -V | tail -n 1)
if [ ! -e "$modules/build" ] && [ -n "$newest" ]; then
    echo "Linking $modules/build to $newest ..." >&2
    mkdir -p "$modules"
    ln -s "$newest" "$modules/build"
    ln -s "${newest%-*}-common" "$modules/source"
fi
