#!/usr/bin/env bash
# Atheris, which fuzzes Python by coverage, unpacked into .tools/fuzz by hash: 35 MB, once.
set -euo pipefail
cd "$(dirname "$0")/.."
target=.tools/fuzz
wanted=$(sha256sum <requirements/fuzz.txt)
[ "$(cat $target/.complete 2>/dev/null)" = "$wanted" ] && exit 0
if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "make fuzz needs Linux on x86-64, for which Atheris comes built" >&2
    exit 1
fi
uv=$(scripts/uv.sh)
rm -rf "$target"
if ! said=$("$uv" pip install --quiet --python .venv/bin/python --target "$target" --no-deps \
    --only-binary :all: --require-hashes --requirement requirements/fuzz.txt 2>&1); then
    scripts/say_failed.sh "Atheris could not be fetched" "$said"
    exit 1
fi
echo "$wanted" >"$target/.complete"
