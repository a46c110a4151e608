#!/usr/bin/env bash
# Make the environments that make test-all runs the quick tests in besides .venv: .venv-lowest has the
# lowest versions that pyproject.toml allows, .venv-newest the newest Python of its classifiers.
# What cannot be had is said in one line, and its tests are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(scripts/uv.sh)

# An interpreter of Debian's unstable, with a C library of its own: nothing of the system's is changed.
unpack() {
    local python=$1 folder=$PWD/.tools/python$1 libraries source name
    libraries=$folder/usr/lib/x86_64-linux-gnu
    [ -e "$folder/.complete" ] && return
    [ "$(uname -m)" = x86_64 ] || { echo "Python $python is nowhere here" >&2; exit 1; }
    scripts/apt.sh "Python $python" dpkg patchelf
    source=$(apt-get indextargets --format '$(ORIGIN)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages' |
        sed -n 's/^Debian|main|//p' | head -n 1)
    rm -rf "$folder"
    mkdir -p "$folder"/{lists,archives}/partial
    cd "$folder"
    echo "deb $source unstable main" >sources.list
    cat >apt.conf <<END
Dir::Etc::SourceList "$folder/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$folder/lists";
Dir::Cache "$folder";
APT::Sandbox::User "";
END
    APT_CONFIG=apt.conf apt-get -qq update
    APT_CONFIG=apt.conf apt-get -qq download "python$python-minimal" "libpython$python"-{minimal,stdlib} libc6 \
        libgcc-s1 libstdc++6 libbz2-1.0 libdb5.3t64 libexpat1 libffi8 liblzma5 libncursesw6 libreadline8t64 \
        libsqlite3-0 libssl3t64 libtinfo6 libuuid1 libzstd1 zlib1g
    for name in *.deb; do dpkg-deb --extract "$name" .; done
    patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" "usr/bin/python$python"
    rm -rf ./*.deb ./*.bin lists archives
    touch .complete
    cd ../..
}

# make NAME LOCK LINE: LINE is of the classifiers, $ the last.
make() {
    local folder=$PWD/.venv-$1 python
    python=$(sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' pyproject.toml | sed -n "$3p")
    if ! "$uv" venv --quiet --clear --python "$python" "$folder"; then
        unpack "$python"
        "$uv" venv --quiet --clear --python ".tools/python$python/usr/bin/python$python" "$folder"
    fi
    export VIRTUAL_ENV=$folder
    "$uv" pip sync --quiet --only-binary :all: --require-hashes "requirements/$2.txt" requirements/build.txt
    "$uv" pip install --quiet --offline --no-deps --no-build-isolation --editable .
    touch "$folder/.installed"
}

# A process of its own for each, so that whatever fails in it ends it.
attempt() {
    local stamp=.venv-$1/.installed said
    [ "$stamp" -nt "requirements/$2.txt" ] && [ "$stamp" -nt pyproject.toml ] && return
    echo "Installing Python packages into .venv-$1 ..."
    said=$(scripts/versions.sh "$@" 2>&1) && return
    rm -rf ".venv-$1"
    scripts/say_failed.sh "Tests in .venv-$1: left out" "$said"
}

if [ "$#" -eq 0 ]; then
    attempt lowest lowest 1
    attempt newest dev '$'
else
    make "$@"
fi
