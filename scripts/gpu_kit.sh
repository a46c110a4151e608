#!/usr/bin/env bash
# Fill .tools/gpu with what make gpu-check needs on a bare GPU machine (x86-64, Python 3.12 or later, no network):
# Python packages by their locked versions, and the libraries that load BPF objects.
set -euo pipefail
cd "$(dirname "$0")/.."

KIT=.tools/gpu
UV=$(scripts/uv.sh)
rm -rf "$KIT"
mkdir -p "$KIT/lib"
"$UV" pip install --quiet --target "$KIT/site" --no-deps --only-binary :all: --no-compile \
    --python-version 3.12 --python-platform x86_64-manylinux_2_28 --constraint requirements/dev.txt \
    nvidia-ml-py protobuf psutil
for name in libbpf.so.1 libelf.so.1; do
    path=$(ldconfig -p | awk -v name="$name" '$1 == name && /x86-64/ { path = $NF } END { print path }')
    if [ -z "$path" ]; then
        echo "gpu-kit: expected $name on this x86-64 machine (Debian's libbpf1): GPU calls cannot be probed with this kit" >&2
        continue
    fi
    cp -L "$path" "$KIT/lib/$name"
done
gcc -O2 -Wall -Werror -o "$KIT/launches" scripts/gpu_launches.c -ldl
git rev-parse HEAD >"$KIT/commit"
du -sh "$KIT"
