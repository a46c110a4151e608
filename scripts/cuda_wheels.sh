#!/usr/bin/env bash
# NVIDIA's compiler, NCCL and two older CUPTI, unpacked into .tools/cuda and .tools/cuda-12-6 for
# tests and for make gpu-kit: nothing is installed, and nothing else looks there. By hash.
# Exit code 77: tests beside them are to be skipped, as this machine cannot have them or has no
# network; the latter fails under CI.
set -euo pipefail
cd "$(dirname "$0")/.."
groups=(cuda cuda-12-6)

if [ "$(uname -sm)" != "Linux x86_64" ]; then
    echo "NVIDIA's wheels: left out, as they are for Linux on x86-64" >&2
    exit 77
fi

# An unpacked folder bears the hash of what it was unpacked by.
stale=()
for group in "${groups[@]}"; do
    wanted=$(sha256sum <"requirements/$group.txt")
    [ "$(cat ".tools/$group/.complete" 2>/dev/null)" = "$wanted" ] || stale+=("$group")
done
[ ${#stale[@]} -gt 0 ] || exit 0

uv=$(scripts/uv.sh)
echo "Unpacking NVIDIA's wheels into .tools ..."
for group in "${stale[@]}"; do
    target=.tools/$group
    rm -rf "$target"
    unpack=("$uv" pip install --quiet --target "$target" --no-deps --only-binary :all: --no-compile
        --python-version 3.12 --python-platform x86_64-manylinux_2_28
        --require-hashes --requirement "requirements/$group.txt")
    # Hashes say what is unpacked, so what the cache has needs no network.
    if ! "${unpack[@]}" --offline 2>/dev/null && ! said=$("${unpack[@]}" 2>&1); then
        rm -rf "$target"
        why=$(scripts/say_failed.sh "NVIDIA's wheels could not be fetched" "$said" 2>&1)
        echo "$why" >&2
        [[ $why == *"did not answer" && -z ${CI:-} ]] && exit 77
        exit 1
    fi
    sha256sum <"requirements/$group.txt" >"$target/.complete"
done
