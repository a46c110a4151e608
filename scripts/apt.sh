#!/usr/bin/env bash
# Have Debian's packages: root installs what is missing, others are told which, and for what.
#   scripts/apt.sh PURPOSE PACKAGE...     fails where one stays missing; elsewhere than on Debian it says them
#   scripts/apt.sh --missing PACKAGE...   prints what is missing, in one line, and installs nothing
set -euo pipefail
purpose=$1
shift

if ! command -v dpkg-query >/dev/null; then
    [ "$purpose" = --missing ] && exit 0
    echo "$purpose: needs, by Debian's names, $*" >&2
    exit 0
fi
installed() {
    dpkg-query --show --showformat='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null | sed -n 's/ installed$//p'
}
mapfile -t missing < <(comm -23 <(printf '%s\n' "$@" | sort -u) <(installed "$@" | sort -u))
[ "${#missing[@]}" -eq 0 ] && exit 0
[ "$purpose" = --missing ] && echo "${missing[*]}" && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "$purpose: left out until root runs: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
fi
echo "Installing ${missing[*]} ..." >&2
export DEBIAN_FRONTEND=noninteractive
# Where the lists cannot be had anew, the old ones may do.
apt-get -qq update >/dev/null 2>&1 || true
if ! said=$(apt-get -qq -y --no-install-recommends install "${missing[@]}" 2>&1 >/dev/null); then
    "$(dirname "$0")/say_failed.sh" "$purpose: left out, as ${missing[*]} could not be installed" "$said"
    exit 1
fi
