#!/usr/bin/env bash
# Make ready what runs programs of arm64 on x86-64, as root: a Debian of that machine with the agent's Debian package and
# NVIDIA's runtimes of CUDA 12 and 13 in .tools/arm64/root, and apt's lists of its kernels, by .tools/arm64/apt.conf.
#   scripts/arm64_root.sh          prints nothing where all is there; exit code 77: this machine cannot have it
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/.tools/arm64 suite=bookworm
refuse() { echo "Tests of arm64: left out, $1" >&2; exit 77; }
[ "$(uname -m)" = x86_64 ] || refuse "as it is emulated on x86-64"
[ "$(id -u)" -eq 0 ] || refuse "as a root folder of Debian's needs root"
scripts/apt.sh "Tests of arm64" qemu-system-arm qemu-user-static gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross \
    debootstrap cpio xz-utils || exit 77

made=$(cat scripts/{arm64_root,debian_root,deb,program_env}.sh requirements/{agent,dev}.txt | sha256sum)
[ "$(cat "$folder/.complete" 2>/dev/null)" != "$made" ] || exit 0
echo "Unpacking Debian for arm64 into .tools/arm64 ..." >&2
rm -rf --one-file-system "$folder"
mkdir -p "$folder"/{lists,cache}/partial "$folder/cache/archives/partial"
touch "$folder/status"
cat >"$folder/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::State::Lists "$folder/lists";
Dir::State::Status "$folder/status";
Dir::Cache "$folder/cache";
END
attempt() {
    local said
    said=$("$@" 2>&1) || { scripts/say_failed.sh "Tests of arm64" "$said"; exit 1; }
}
APT_CONFIG=$folder/apt.conf attempt apt-get -qq update
attempt scripts/debian_root.sh aarch64 "$suite" "$folder/root" python3,libbpf1,ca-certificates,busybox-static,gcc,g++,libc6-dev
MACHINE=aarch64 attempt scripts/deb.sh "$folder/dist"
dpkg-deb --fsys-tarfile "$folder"/dist/pointillist-agent_*_arm64.deb | tar -x --keep-directory-symlink -C "$folder/root"
awk '/^(nvidia-cuda-runtime|hypothesis==)/ { on = 1 } on; !/\\$/ { on = 0 }' requirements/dev.txt >"$folder/tests.txt"
attempt "$(scripts/uv.sh)" pip install --quiet --target "$folder"/root"/usr/lib/pointillist/tests" --no-deps --only-binary :all: \
    --python-version 3.11 --python-platform aarch64-manylinux_2_28 --require-hashes --requirement "$folder/tests.txt"
# Compiled here: emulated it takes half a minute at each start.
attempt .venv/bin/python -m compileall -q -j 2 --invalidation-mode unchecked-hash "$folder/root"/usr/lib/{python3.11,pointillist/agent/lib}
echo "$made" >"$folder/.complete"
