#!/usr/bin/env bash
# What checks the chart and the compose file: helm, compose's own reader and the Prometheus operator's
# types of their Go modules (deploy/helm/tools, by hash), Kubernetes' schemas by a locked Python
# package. All into .tools/charts; the first build takes minutes. Exit code 77: there is no Go here.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$PWD/.tools/charts

command -v go >/dev/null || { echo "Tests of the chart: left out, there is no Go here" >&2; exit 77; }
stamp=$(cat deploy/helm/tools/{go.mod,go.sum} deploy/helm/tools/podmonitor/main.go requirements/charts.txt | sha256sum)
[ "$(cat "$target/.built" 2>/dev/null)" = "$stamp" ] && exit 0
echo "Building helm and what reads the chart into .tools/charts ..." >&2
uv=$(scripts/uv.sh)
attempt() {
    local said
    said=$("$@" 2>&1) || { scripts/say_failed.sh "Tests of the chart: left out" "$said"; exit 1; }
}
mkdir -p "$target/bin"
export GOFLAGS=-mod=readonly
attempt go -C deploy/helm/tools build -trimpath -o "$target/bin/" helm.sh/helm/v3/cmd/helm ./podmonitor
attempt go -C deploy/helm/tools build -trimpath -o "$target/bin/compose" github.com/compose-spec/compose-go/v2/cmd
attempt "$uv" venv --quiet --clear --python '>=3.11' "$target/venv"
VIRTUAL_ENV=$target/venv attempt "$uv" pip sync --quiet --require-hashes requirements/charts.txt
echo "$stamp" >"$target/.built"
