#!/usr/bin/env bash
# List what an agent and the aggregators install, with versions and licences: CycloneDX files beside the
# packages in dist/, and the page docs/licences.md. The same lock files give the same lists.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-dist}")
uv=$(scripts/uv.sh)
tools=.tools/sbom
if [ ! "$tools/.installed" -nt requirements/sbom.txt ]; then
    said=$( ("$uv" venv --quiet --clear "$tools" &&
        VIRTUAL_ENV="$PWD/$tools" "$uv" pip sync --quiet --require-hashes requirements/sbom.txt) 2>&1) ||
        { scripts/say_failed.sh "The lister of packages could not be installed" "$said"; exit 1; }
    touch "$tools/.installed"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wheel=$(scripts/wheel.sh "$work")
mkdir -p "$out"
lists=()
for pair in agent:agent aggregator:parties; do
    program=${pair%:*}
    scripts/program_env.sh "${pair#*:}" "$wheel" "$work/$program"
    lists+=("$out/pointillist-$program.cdx.json")
    "$tools/bin/cyclonedx-py" environment --output-reproducible --pyproject pyproject.toml \
        --output-file "${lists[-1]}" "$work/$program/bin/python"
done
.venv/bin/python -m scripts.licences "${lists[@]}"
printf '%s\n' "${lists[@]}"
