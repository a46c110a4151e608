#!/usr/bin/env bash
# Print the path of uv: the one on PATH, else one of our own in .tools (installed on first use).
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v uv; then
    exit 0
fi
if [ ! -x .tools/bin/uv ]; then
    python=
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "Pointillist needs Python 3.11 or later, or uv, on PATH." >&2
        exit 1
    fi
    # The machine's own pip (22.3 has --python) fills the folder in 4 s; making it one of its own takes up to ten more.
    if "$python" -c 'import sys, pip; sys.exit([*map(int, pip.__version__.split(".")[:2])] < [22, 3])' 2>/dev/null; then
        pip=("$python" -m pip --python .tools/bin/python)
        "$python" -m venv --without-pip .tools
    else
        pip=(.tools/bin/python -m pip)
        if ! "$python" -m venv .tools >&2; then
            rm -rf .tools
            echo "$python cannot make a virtual environment. On Debian and Ubuntu:" >&2
            echo "  apt-get install python3-venv" >&2
            exit 1
        fi
    fi
    if ! said=$("${pip[@]}" install --quiet --disable-pip-version-check uv 2>&1); then
        scripts/say_failed.sh "uv, which installs the packages, could not be fetched" "$said"
        exit 1
    fi
fi
echo "$PWD/.tools/bin/uv"
