#!/usr/bin/env bash
# Build the wheel, byte for byte the same from the same files on any machine, and print its path.
#   scripts/wheel.sh [FOLDER]     dist/ without
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-dist}
# Times of files inside: those of the last commit, or of whoever builds from a source archive.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1577836800)}
export SOURCE_DATE_EPOCH
mkdir -p "$folder"
said=$(.venv/bin/python -m hatchling build --target wheel --directory "$folder" 2>&1) ||
    { scripts/say_failed.sh "The wheel could not be built" "$said"; exit 1; }
find "$folder" -maxdepth 1 -name 'pointillist-*.whl' -newer pyproject.toml -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2-
