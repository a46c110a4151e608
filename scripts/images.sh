#!/usr/bin/env bash
# Build the images localhost/pointillist-{agent,aggregator,web}: a base of Debian by debootstrap, the
# packages of the hashed requirement files, this project's wheel; put together by buildah, as root.
#   scripts/images.sh [NAME...]        all three without a name; MACHINE=aarch64 for another machine: tag arm64
# Exit code 77: this machine cannot build them. The images lie in .tools/images/storage; images_storage.sh
# beside this points podman and buildah there.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/images_storage.sh
names=("$@")
[ "${#names[@]}" -gt 0 ] || names=(agent aggregator web)
for name in "${names[@]}"; do
    [[ $name =~ ^(agent|aggregator|web)$ ]] || { echo "Images: expected agent, aggregator or web, got $name" >&2; exit 2; }
done
suite=bookworm python=3.11
work=$PWD/.tools/images

[ "$(id -u)" -eq 0 ] || { echo "Images: left out, building them needs root" >&2; exit 77; }
scripts/apt.sh "Images" buildah podman runc debootstrap || exit 77
machine=${MACHINE:-$(uname -m)} tag=latest wheels=()
case $machine in
    "$(uname -m)") architecture=$(dpkg --print-architecture) ;;
    aarch64) architecture=arm64 tag=arm64 wheels=(--python-platform aarch64-manylinux_2_28 --only-binary :all:) ;;
    *) echo "Images: expected MACHINE=aarch64 or none, got $machine" >&2; exit 2 ;;
esac
uv=$(scripts/uv.sh)
export UV_LINK_MODE=copy
mkdir -p "$work"

attempt() {
    local said
    said=$("$@" 2>&1) || { scripts/say_failed.sh "Images could not be built" "$said"; exit 1; }
}

# The one place that says which locked packages an image has.
lock_of() {
    echo "requirements/$1.txt"
}

# What an image is made of, as one hash: an image that has it as its label is not made again.
inputs_of() {
    local folders
    folders=$(.venv/bin/python -c 'import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
print(*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])')
    # shellcheck disable=SC2086  one word each
    { cat "$(lock_of "$1")" pyproject.toml scripts/images.sh scripts/debian_root.sh
      find deploy/images $folders -type f -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 cat; } | sha256sum | cut -c1-64
}

# Debian with Python, libbpf and certificates; what a container has no use for is taken out. Packages
# are Debian's, signed; a new build has those of the day.
build_base() {
    local rootfs=$work/rootfs
    buildah inspect --type image "localhost/pointillist-base:$tag" >/dev/null 2>&1 && return
    echo "Building the base image of Debian $suite for $architecture ..." >&2
    attempt scripts/debian_root.sh "$machine" "$suite" "$rootfs" python3,libbpf1,ca-certificates
    rm -rf --one-file-system "$rootfs"/var/{cache,log,lib/apt}/* "$rootfs"/usr/share/{doc,man,info,locale,lintian,bug} \
        "$rootfs"/{boot,media,mnt,srv}/* "$rootfs"/etc/machine-id "$rootfs"/etc/hostname "$rootfs"/etc/resolv.conf
    mkdir -p "$rootfs"/etc/pointillist "$rootfs"/var/lib/pointillist "$rootfs"/run/pointillist
    touch "$rootfs/etc/machine-id"
    local container
    container=$(buildah from scratch)
    attempt buildah add --quiet "$container" "$rootfs" /
    attempt buildah config --arch "$architecture" "$container"
    attempt buildah commit --quiet --rm "$container" "localhost/pointillist-base:$tag"
    rm -rf --one-file-system "$rootfs"
}

# What is copied into an image: its packages by hash, the wheel, the command.
gather() {
    local context=$work/context
    rm -rf "$context"
    mkdir -p "$context/bin" "$context/wheel"
    attempt "$uv" pip install --quiet --python-version "$python" "${wheels[@]}" --target "$context/site" --require-hashes -r "$(lock_of "$1")"
    attempt scripts/wheel.sh "$context/wheel"
    attempt "$uv" pip install --quiet --offline --python-version "$python" --target "$context/site" --no-deps "$context"/wheel/*.whl
    # Others' own tests, headers and static libraries: a fifth of the whole.
    find "$context/site" -depth \( -path '*/numpy/*/tests' -o -path '*/pandas/tests' -o -path '*/scipy/*/tests' \
        -o -path '*/pyarrow/tests' -o -path '*/pyarrow/include' -o -path '*/matplotlib/tests' \) -exec rm -rf {} +
    rm -rf "$context"/site/bin "$context"/site/.lock
    printf '#!/usr/bin/python3\nfrom pointillist.cli import main\n\nmain()\n' >"$context/bin/pointillist"
    cp deploy/images/start.py "$context/bin/pointillist-start"
    chmod 755 "$context"/bin/*
    cp deploy/images/{passwd,group} "$context"
    # Compiled here, as a read-only root takes no files; a checked hash needs no times to be kept.
    attempt .venv/bin/python -m compileall -q -j 2 --invalidation-mode unchecked-hash -s "$context/site" \
        -p "/usr/local/lib/python$python/dist-packages" "$context/site"
    chmod -R go+rX "$context"
}

build_base
for name in "${names[@]}"; do
    inputs=$(inputs_of "$name")
    label=$(buildah inspect --type image --format '{{index .OCIv1.Config.Labels "pointillist.inputs"}}' \
        "localhost/pointillist-$name:$tag" 2>/dev/null || true)
    [ "$label" = "$inputs" ] && continue
    echo "Building localhost/pointillist-$name from $(lock_of "$name") ..." >&2
    gather "$name"
    attempt buildah build --quiet --isolation chroot --target "$name" --label "pointillist.inputs=$inputs" \
        --arch "$architecture" --build-arg "BASE=localhost/pointillist-base:$tag" --tag "localhost/pointillist-$name:$tag" --file deploy/images/Containerfile "$work/context"
    rm -rf "$work/context"
done
attempt buildah rmi --prune
buildah images --format '{{.Name}} {{.Size}}' >&2
