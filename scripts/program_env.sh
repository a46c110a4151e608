#!/usr/bin/env bash
# Make an environment of one program as a machine gets it: the packages of a lock file by hash, the
# wheel, and nothing of the checkout. It can be moved: its scripts find their Python beside them.
#   scripts/program_env.sh LOCK WHEEL FOLDER     LOCK as in requirements/LOCK.txt; MACHINE=aarch64 for another machine
set -euo pipefail
lock=$1 wheel=$(realpath "$2") folder=$(realpath -m "$3")
cd "$(dirname "$0")/.."
uv=$(scripts/uv.sh)
wheels=()
[ "${MACHINE:-$(uname -m)}" = "$(uname -m)" ] || wheels=(--python-platform "$MACHINE-manylinux_2_28" --only-binary :all:)
attempt() {
    local said
    said=$("$uv" "$@" 2>&1) || { scripts/say_failed.sh "The environment $lock could not be made" "$said"; exit 1; }
}

# The system's own Python, where it is new enough: root may have another that services cannot reach.
python='>=3.11'
if /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=/usr/bin/python3
fi
attempt venv --quiet --clear --relocatable --python "$python" "$folder"
# Copies: links into the cache would be counted by nobody, and changed with it.
export VIRTUAL_ENV="$folder" UV_LINK_MODE=copy
attempt pip sync --quiet --require-hashes "${wheels[@]}" "requirements/$lock.txt"
attempt pip install --quiet --offline --no-deps "$wheel"
# Where it was installed from, and when, is this machine's affair.
info=$(find "$folder/lib" -maxdepth 3 -name 'pointillist-*.dist-info')
rm -f "$info/direct_url.json" "$info/uv_cache.json"
sed -i '/dist-info\/\(direct_url\|uv_cache\)\.json/d' "$info/RECORD"
rm -f "$folder"/bin/activate* "$folder/bin/deactivate.bat" "$folder/bin/pydoc.bat" "$folder/.gitignore" "$folder/.lock"
