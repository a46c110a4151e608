#!/usr/bin/env bash
# Make .venv as the requirement files say, every package by hash, and install the project editable.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup_bpf.sh
scripts/setup_faults.sh
uv=$(scripts/uv.sh)
export VIRTUAL_ENV="$PWD/.venv"

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    "$uv" venv --quiet --clear --python '>=3.11' .venv
fi
echo "Installing Python packages into .venv ..."
"$uv" pip sync --quiet --require-hashes requirements/dev.txt requirements/build.txt
# The build tools came by hash just now, so the build must not fetch its own.
"$uv" pip install --quiet --no-deps --no-build-isolation --editable .
