#!/usr/bin/env bash
# OpenTelemetry's collector with the parts that deploy/otel/collector.yaml names, built of its own Go
# modules (tests/edge_agent/export/otelcol, by hash) into .tools/otelcol for tests. The first build
# takes some 12 minutes on two cores. Exit code 77: there is no Go here, and the tests beside it are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/.tools/otelcol

command -v go >/dev/null || { echo "OpenTelemetry's collector: left out, there is no Go here" >&2; exit 77; }
stamp=$(cat tests/edge_agent/export/otelcol/{main.go,go.mod,go.sum} | sha256sum)
[ "$(cat "$target/.built" 2>/dev/null)" = "$stamp" ] && exit 0
echo "Building OpenTelemetry's collector into .tools/otelcol ..." >&2
mkdir -p "$target"
(cd tests/edge_agent/export/otelcol && GOFLAGS=-mod=readonly go build -trimpath -o "$target/otelcol" .)
echo "$stamp" >"$target/.built"
