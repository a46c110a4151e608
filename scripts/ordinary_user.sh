#!/usr/bin/env bash
# Run a command in a copy of this checkout that an ordinary user owns, by the system's Python and
# with nothing of root's on its path. Root makes the user and the copy, and removes both at the end.
#   scripts/ordinary_user.sh make test-quick
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
if [ "$(id -u)" -ne 0 ]; then
    echo "ordinary_user.sh: expected root, which makes the user; any other user runs $*" >&2
    exit 1
fi

user=pointillist-$$
folder=$(mktemp -d /var/tmp/pointillist-user.XXXXXX)
end() {
    find /tmp /var/tmp /dev/shm -maxdepth 1 -user "$user" -exec rm -rf {} + 2>/dev/null || true
    rm -rf "$folder"
    userdel --force "$user" 2>/dev/null || true
}
trap end EXIT

# Others may not enter the folders above the checkout, and its history is no link: it changes hands.
chmod 755 "$folder"
useradd --user-group --create-home --home-dir "$folder/home" --shell /bin/bash "$user"
git clone --quiet --no-hardlinks --no-checkout . "$folder/copy"
git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from=- --ignore-failed-read 2>/dev/null |
    tar --extract --directory "$folder/copy"
git -C "$folder/copy" reset --quiet
chown -R "$user:" "$folder/copy"

# The caller's environment (certificates, package indices), but for what leads to its own folders.
unset=()
while IFS='=' read -r -d '' name value; do
    [[ $value == *"$HOME/"* || $value == *"$PWD"* ]] && unset+=("--unset=$name")
done < <(env --null)
cd "$folder/copy"
echo "--- as the ordinary user $user, in $PWD, by $(/usr/bin/python3 --version) of the system: $*"
setpriv --reuid="$user" --regid="$user" --init-groups --inh-caps=-all env "${unset[@]}" \
    HOME="$folder/home" USER="$user" LOGNAME="$user" PATH=/usr/bin:/bin "$@"
