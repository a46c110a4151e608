#!/usr/bin/env bash
# Hold deploy/grafana/*.json to Grafana's own schema, the types of its npm package @grafana/schema.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v npm >/dev/null; then
    echo "Grafana's schema needs npm; on Debian and Ubuntu: apt-get install npm" >&2
    # On a machine that only lacks npm the other checks still stand; CI must run them all.
    [ -z "${CI:-}" ]
    exit
fi
folder=scripts/grafana
if [ ! "$folder/node_modules/.package-lock.json" -nt "$folder/package-lock.json" ]; then
    npm ci --prefix "$folder" --loglevel=error --no-audit --no-fund >/dev/null
    touch "$folder/node_modules/.package-lock.json"
fi
# Literals are checked exactly in TypeScript, an imported JSON file is not: so each becomes a module.
made=$folder/node_modules/.dashboards
rm -rf "$made"
mkdir -p "$made"
for file in deploy/grafana/*.json; do
    name=$(basename "$file" .json)
    {
        echo 'import type { Dashboard } from "@grafana/schema";'
        echo 'export const dashboard: Dashboard ='
        cat "$file"
        echo ';'
    } >"$made/$name.ts"
done
"$folder/node_modules/.bin/tsc" --noEmit --strict --skipLibCheck --target es2022 --module nodenext \
    --moduleResolution nodenext "$made"/*.ts
