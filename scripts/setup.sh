#!/usr/bin/env bash
# Make .venv as the requirement files say, every package by hash, and install the project editable.
# Nothing is installed outside the checkout: what tests need of the system, `make tools` installs.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(scripts/uv.sh)
export VIRTUAL_ENV="$PWD/.venv"

attempt() {
    local said
    said=$("$uv" "$@" 2>&1) || { scripts/say_failed.sh "Python packages could not be installed" "$said"; exit 1; }
}

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    attempt venv --quiet --clear --python '>=3.11' .venv
fi
echo "Installing Python packages into .venv ..."
sync=(pip sync --quiet --require-hashes requirements/dev.txt requirements/build.txt)
# Hashes say what is installed, so what the cache has needs no network.
"$uv" "${sync[@]}" --offline 2>/dev/null || attempt "${sync[@]}"
# The build tools came by hash just now, so the build must not fetch its own.
attempt pip install --quiet --offline --no-deps --no-build-isolation --editable .

# What the demo's processes load is compiled once: they start together, and each would do it, every
# time where PYTHONDONTWRITEBYTECODE is set.
PYTHONDONTWRITEBYTECODE='' .venv/bin/python -c \
    'import aggregator.leader_process, aggregator.helper_process, aggregator.releases.releases, edge_agent.open_agent, pointillist.play.demo_summary, simulator.slices'

# As root each role becomes a user of its own, who must read the code whatever root's umask is.
if [ "$(id -u)" -eq 0 ]; then
    chmod -R go+rX .venv wire privacy transport kernels collectors diagnosis edge_agent aggregator analytics simulator web pages pointillist bpf cupti
fi
