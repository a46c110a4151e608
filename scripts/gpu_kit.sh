#!/usr/bin/env bash
# Fill .tools/gpu with what make gpu-check needs on a bare GPU machine (x86-64, Python 3.12, no network,
# no CUDA toolkit, no PyTorch): Python packages by their locked versions, the libraries that load BPF objects, and
# programs with a cubin. What it may be is what a lent machine takes.
set -euo pipefail
cd "$(dirname "$0")/.."

KIT=.tools/gpu
MOST_MIB=64
UV=$(scripts/uv.sh)
rm -rf "$KIT"
mkdir -p "$KIT/lib"
"$UV" pip install --quiet --target "$KIT/site" --no-deps --only-binary :all: --no-compile \
    --python-version 3.12 --python-platform x86_64-manylinux_2_28 --constraint requirements/dev.txt \
    capstone numpy nvidia-ml-py protobuf psutil
# What nothing imports.
find "$KIT/site" \( -name tests -o -name include -o -name f2py -o -name '*.pyi' -o -name '*.a' -o -name '_simd.*.so' \) \
    -prune -exec rm -rf {} +
for name in libbpf.so.1 libelf.so.1; do
    path=$(ldconfig -p | awk -v name="$name" '$1 == name && /x86-64/ { path = $NF } END { print path }')
    if [ -z "$path" ]; then
        echo "gpu-kit: expected $name on this x86-64 machine (Debian's libbpf1): GPU calls cannot be probed with this kit" >&2
        continue
    fi
    cp -L "$path" "$KIT/lib/$name"
done

scripts/cuda_wheels.sh
scripts/gpu_programs/build.sh "$KIT"
# A machine without toolkit has no CUPTI either. In a folder of its own: PyTorch brings another.
mkdir "$KIT/cupti"
cp .tools/cuda-12-6/nvidia/cuda_cupti/lib/libcupti.so.12 "$KIT/cupti"

git rev-parse HEAD >"$KIT/commit"
size=$(du -sb "$KIT" | cut -f1)
echo "$((size >> 20)) MiB in $KIT"
if [ "$size" -ge $((MOST_MIB << 20)) ]; then
    echo "gpu-kit: expected less than $MOST_MIB MiB, got $((size >> 20))" >&2
    exit 1
fi
