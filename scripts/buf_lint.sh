#!/usr/bin/env bash
# Lint the protobuf files with buf, which comes as an npm package pinned by scripts/buf/.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v npm >/dev/null; then
    echo "buf lint needs npm; on Debian and Ubuntu: apt-get install npm" >&2
    # On a machine that only lacks npm the other checks still stand; CI must run them all.
    [ -z "${CI:-}" ]
    exit
fi
if [ ! scripts/buf/node_modules/.package-lock.json -nt scripts/buf/package-lock.json ]; then
    npm ci --prefix scripts/buf --loglevel=error --no-audit --no-fund >/dev/null
    touch scripts/buf/node_modules/.package-lock.json
fi
buf=$(find scripts/buf/node_modules/@bufbuild -path '*/bin/buf')
if [ -z "$buf" ]; then
    echo "buf lint is pinned for Linux on x86-64 and arm64 only; not run here" >&2
    [ -z "${CI:-}" ]
    exit
fi
"$buf" lint wire/proto
