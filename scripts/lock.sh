#!/usr/bin/env bash
# Compile the requirement files with hashes from pyproject.toml; what is pinned stays pinned unless
# --upgrade is given. The files name no index: each machine uses its own.
#   scripts/lock.sh [--upgrade | --upgrade-package NAME]
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(scripts/uv.sh)

compile() {
    # --group works on the pyproject.toml of this folder.
    "$uv" pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
        --no-emit-index-url --no-emit-find-links "$@"
}

compile pyproject.toml --output-file requirements/run.txt "${@}"
compile pyproject.toml --group dev --extra training --extra web --extra witness-postgresql --constraint requirements/run.txt \
    --output-file requirements/dev.txt "${@}"
compile --group build --constraint requirements/dev.txt \
    --output-file requirements/build.txt "${@}"
for group in cuda cuda-12-6; do
    compile --group "$group" --output-file "requirements/$group.txt" "${@}"
done
# Beside Spark every package is that of run.txt, but for the pandas that Spark asks for.
compile pyproject.toml --extra spark --no-annotate --output-file requirements/spark.txt \
    --constraint <(grep '==' requirements/run.txt | sed 's/ *\\$//' | grep -v '^pandas==') "${@}"

if grep -nE '^(-i|-f|--(extra-)?index-url|--find-links)|https?://' requirements/*.txt; then
    echo "scripts/lock.sh: a requirement file names a host; see the lines above" >&2
    exit 1
fi
