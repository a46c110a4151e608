#!/usr/bin/env bash
# Compile the programs of the GPU kit, a cubin for an H100 and PTX for other GPUs.
#   scripts/gpu_programs/build.sh FOLDER
# Needs .venv, .tools/cuda and gcc.
set -euo pipefail
out=$(realpath "$1")
cd "$(dirname "$0")/../.."

.venv/bin/python -m scripts.gpu_programs.cubins "$out"
compile=(gcc -O2 -Wall -Wextra -Werror)
"${compile[@]}" -o "$out/driver" scripts/gpu_programs/driver.c -ldl
# The runtime of CUDA 12.9, which drivers of CUDA 12 and 13 serve; some of its headers are in another package.
runtime=$(.venv/bin/python -c 'import nvidia; print(next(iter(nvidia.__path__)))')/cuda_runtime
"${compile[@]}" -I"$runtime/include" -idirafter .tools/cuda/nvidia/cu13/include -o "$out/runtime" \
    scripts/gpu_programs/runtime.c "$runtime/lib/libcudart_static.a" -ldl -lrt -lpthread
