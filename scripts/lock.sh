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

# run.txt is all that the programs need; each program's own file is a part of it, at the same versions.
programs=(agent aggregator web simulator)
compile pyproject.toml "${programs[@]/#/--extra=}" --extra witness-postgresql --output-file requirements/run.txt "${@}"
for program in "${programs[@]}"; do
    compile pyproject.toml --extra "$program" --no-annotate --constraint requirements/run.txt \
        --output-file "requirements/$program.txt" "${@}"
done
# The package of the aggregators: Leader, Helper, witness and web, and the agent's commands: where
# both packages are installed, theirs is the command that people type.
compile pyproject.toml --extra agent --extra aggregator --extra web --extra witness-postgresql --no-annotate \
    --constraint requirements/run.txt --output-file requirements/parties.txt "${@}"
compile pyproject.toml --group dev --extra training "${programs[@]/#/--extra=}" --extra witness-postgresql --constraint requirements/run.txt \
    --output-file requirements/dev.txt "${@}"
# Its kernel is the one that the tests run the documentation's notebook with.
compile pyproject.toml --extra notebook --no-annotate --constraint requirements/dev.txt \
    --output-file requirements/notebook.txt "${@}"
compile --group build --constraint requirements/dev.txt \
    --output-file requirements/build.txt "${@}"
# The lowest versions that pyproject.toml allows: make test-all runs the quick tests with them.
compile pyproject.toml --resolution lowest-direct --group dev --extra simulator --extra training \
    --extra witness-postgresql --no-annotate --constraint requirements/build.txt --output-file requirements/lowest.txt "${@}"
for group in cuda cuda-12-6 fuzz charts audit sbom; do
    compile --group "$group" --output-file "requirements/$group.txt" "${@}"
done
# Beside Spark every package is that of run.txt, but for the pandas that Spark asks for.
compile pyproject.toml --extra spark --no-annotate --output-file requirements/spark.txt \
    --constraint <(grep '==' requirements/run.txt | sed 's/ *\\$//' | grep -v '^pandas==') "${@}"

if grep -nE '^(-i|-f|--(extra-)?index-url|--find-links)|https?://' requirements/*.txt; then
    echo "scripts/lock.sh: a requirement file names a host; see the lines above" >&2
    exit 1
fi
