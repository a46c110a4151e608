"""Key files: who may read them, what stands in them, and that a host key stays on its host.

A key file is text, at most 4 KiB: the line `pointillist-key 1`, then `name value` lines, the names
below and no other, each once; values are lower-case hex, decimal numbers or words.

| kind    | further lines                                                                       |
|---------|-------------------------------------------------------------------------------------|
| signing | `seed` 32 B: Ed25519 (RFC 8032)                                                      |
| hpke    | `seed` 96 B: ML-KEM-768 seed 64, X25519 32; `not_before`, `not_after` in seconds      |
| host    | `seed` 32 B; `hardware` `host_binding(...)`; `ledger` `yes` once a ledger exists      |

A file is refused unless it is a regular file of the effective user that nobody else may read. The
`ledger` line is what makes the loss of a ledger visible: a host key that had one and finds none
must not publish as if its budget were untouched.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from transport.files.sqlite_file import sync
from transport.process.privileges import user_name, way_in, way_to_own
from wire.fields import MAX_TIME

MAX_FILE_BYTES: Final = 4096
_FIRST_LINE: Final = "pointillist-key 1"
_BINDING_LABEL: Final = b"pointillist/host-binding/2"
BINDING_PART_BYTES: Final = 16
_LEFTOVER: Final = re.compile(r"\..+\.[0-9a-f]{12}")
MACHINE_ID: Final = Path("/etc/machine-id")
_ID: Final = re.compile("[0-9a-f]{32}")
_MOST_ID_BYTES: Final = 256
_OF_IMAGES: Final = frozenset({
    "88544b92092430bc5d3fbbffc12a2f04",  # debian:11.2 of Docker
    "85f94e57ab75f80918cab17d001eac85",  # debian:11.1 of Docker
    "cdb7f92199c748a7a20d33ab52974cbb",  # Debian 8.1 for OpenStack
    "9989a26f06984d6dbadc01770f018e3b",  # HypriotOS before 1.7
})  # fmt: skip
"""Ids that came with an image: whoever runs it has the same one."""
NEW_ID: Final = "`rm -f /etc/machine-id /var/lib/dbus/machine-id && systemd-machine-id-setup`"
_NEW_ID: Final = f"{NEW_ID} makes one, and a container has its host's file mounted"
_CHANGED: Final = (
    "set host.gpu_uuids right, or, where its GPUs were changed, have a new key enrolled in the old "
    "one's place (`pointillist agent rekey` carries the ledger on)"
)
_COPIED: Final = (
    "a copied disk: `pointillist agent disown` makes a key of its own, and the other machine stays "
    "on the roster. The machine itself: put its old id back, or `pointillist agent rekey`"
)


class KeyFileRefused(Exception):
    """A key file that must not be used; names file and way out, never a value from inside."""

    @property
    def parts(self) -> tuple[str, str | None]:
        """What is wrong, and the way out where there is one."""
        found, _, way_out = str(self).rpartition("; ")
        return (found, way_out) if found else (way_out, way_in(self))


class KeyFileAbsent(KeyFileRefused):
    """There is no such file."""


class KeyFileExists(KeyFileRefused):
    """A key lies there already."""


@dataclass(frozen=True, slots=True)
class HpkeKeyFile:
    """An aggregator's daily sealing key with the interval in which it is announced, seconds."""

    pair: HpkeKeyPair
    not_before: int
    not_after: int


@dataclass(frozen=True, slots=True)
class HostKey:
    """A host's identity, the machine it belongs to, and whether it ever had a ledger."""

    signing: SigningKey
    binding: bytes = field(repr=False)
    ledger_exists: bool = False


def machine_id(path: Path = MACHINE_ID) -> str:
    """The id of this installation. Raises KeyFileRefused where the system has none of its own."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_ID_BYTES).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise KeyFileRefused(f"{path}: no machine id ({error.strerror}); {_NEW_ID}") from error
    if _ID.fullmatch(text) is None:
        got = repr(text[:40]) if text else "an empty file"
        raise KeyFileRefused(
            f"{path}: no machine id (expected 32 lower-case hex digits, got {got}); {_NEW_ID}"
        )
    if text in _OF_IMAGES or text in (text + text)[1:-1] or max(map(text.count, text)) > 16:
        raise KeyFileRefused(
            f"{path}: no machine's own id ({text} is a pattern, or came with an image that others "
            f"run, too); {_NEW_ID}"
        )
    return text


def host_binding(machine: str, gpu_uuids: Sequence[str]) -> bytes:
    """Hash this machine, in parts: 16 B of the machine id, then 16 B of each GPU, rising."""
    gpus = sorted(_part_hash(b"gpu", uuid) for uuid in set(gpu_uuids))
    return _part_hash(b"machine", machine) + b"".join(gpus)


def _part_hash(kind: bytes, name: str) -> bytes:
    encoded = _BINDING_LABEL + kind + b"\0" + name.encode()
    return hashlib.sha256(encoded).digest()[:BINDING_PART_BYTES]


def what_changed(made_on: bytes, found: bytes) -> str:
    """Say how the machine differs from the one that a binding was made on."""
    words = []
    if not same_machine_id(made_on, found):
        words.append("another machine id")
    before, now = (_gpus_of(binding) for binding in (made_on, found))
    if gone := len(before - now):
        words.append(f"{gone} of {len(before)} GPUs gone")
    if new := len(now - before):
        words.append(f"{new} {'GPU' if new == 1 else 'GPUs'} not known before")
    return ", ".join(words) or "nothing"


def same_machine_id(made_on: bytes, found: bytes) -> bool:
    return made_on[:BINDING_PART_BYTES] == found[:BINDING_PART_BYTES]


def way_to_identity(made_on: bytes, found: bytes) -> str:
    """Say how a machine comes by a key that is its own, where its key was made on another."""
    return _CHANGED if same_machine_id(made_on, found) else _COPIED


def shared_gpus(made_on: bytes, found: bytes) -> int:
    """Count the GPUs that two bindings have in common."""
    return len(_gpus_of(made_on) & _gpus_of(found))


def _gpus_of(binding: bytes) -> set[bytes]:
    starts = range(BINDING_PART_BYTES, len(binding), BINDING_PART_BYTES)
    return {binding[at : at + BINDING_PART_BYTES] for at in starts}


def write_signing_key(path: Path, key: SigningKey, *, owner: int | None = None) -> None:
    write_key(path, "signing", {"seed": key.seed_bytes().hex()}, owner=owner)


def load_signing_key(path: Path, *, owner: int | None = None) -> SigningKey:
    """The long-lived Ed25519 key of a Leader or Helper. Raises KeyFileRefused.

    owner       the user whose file it must be; the effective user without it, as in all loaders
    """
    fields = _read(path, "signing", {"seed"}, owner)
    return SigningKey.from_seed_bytes(_hex(path, fields, "seed", 32))


def write_hpke_key(path: Path, key: HpkeKeyFile, *, owner: int | None = None) -> None:
    times = {"not_before": str(key.not_before), "not_after": str(key.not_after)}
    write_key(path, "hpke", {"seed": key.pair.seed_bytes().hex(), **times}, owner=owner)


def load_hpke_key(path: Path, *, owner: int | None = None) -> HpkeKeyFile:
    """An aggregator's daily sealing key. Raises KeyFileRefused."""
    fields = _read(path, "hpke", {"seed", "not_before", "not_after"}, owner)
    pair = HpkeKeyPair.from_seed_bytes(_hex(path, fields, "seed", 96))
    return HpkeKeyFile(
        pair, _seconds(path, fields, "not_before"), _seconds(path, fields, "not_after")
    )


def write_host_key(
    path: Path, key: HostKey, *, replace_file: bool = False, owner: int | None = None
) -> None:
    fields = {
        "seed": key.signing.seed_bytes().hex(),
        "hardware": key.binding.hex(),
        "ledger": "yes" if key.ledger_exists else "no",
    }
    write_key(path, "host", fields, replace_file=replace_file, owner=owner)


def load_host_key(path: Path, binding: bytes) -> HostKey:
    """The identity of this host, `binding` being `host_binding` of the machine that asks.

    Raises      KeyFileRefused, also where the key was made on another machine: two copies of one
                identity would each spend a whole budget
    """
    key = read_host_key(path)
    if key.binding != binding:
        raise KeyFileRefused(
            f"{path}: made on another machine or with other GPUs: "
            f"{what_changed(key.binding, binding)}; {way_to_identity(key.binding, binding)}"
        )
    return key


def read_host_key(path: Path, *, owner: int | None = None) -> HostKey:
    """A host key without the check of its binding: only to show it. Raises KeyFileRefused."""
    fields = _read(path, "host", {"seed", "hardware", "ledger"}, owner)
    if fields["ledger"] not in {"yes", "no"}:
        raise KeyFileRefused(f"{path}: `ledger` should be yes or no")
    signing = SigningKey.from_seed_bytes(_hex(path, fields, "seed", 32))
    parts = len(fields["hardware"]) // (2 * BINDING_PART_BYTES)
    binding = _hex(path, fields, "hardware", max(parts, 1) * BINDING_PART_BYTES)
    return HostKey(signing, binding, fields["ledger"] == "yes")


def supersede_host_key(path: Path, key: HostKey) -> None:
    """Put another key in a key's place, which is never empty; overwrite and remove the one before.

    Cut off, the place holds the one or the other, and `sweep_leftovers` removes what is beside it.
    Raises      OSError
    """
    before = _leftover(path)
    before.hardlink_to(path)
    write_host_key(path, key, replace_file=True)
    _wipe(before)
    _sync_folder(path.parent)


def mark_ledger(path: Path, binding: bytes) -> HostKey:
    """Record in the host key that its ledger exists, before the ledger's first entry."""
    key = load_host_key(path, binding)
    if not key.ledger_exists:
        key = replace(key, ledger_exists=True)
        write_host_key(path, key, replace_file=True)
    return key


def write_key(
    path: Path,
    kind: str,
    fields: Mapping[str, str],
    *,
    replace_file: bool = False,
    owner: int | None = None,
) -> None:
    """Write a key file whole or not at all, mode 0600, synced to disk; for root, of `owner`.

    Raises      KeyFileRefused when the file exists and `replace_file` is false; OSError
    """
    lines = [_FIRST_LINE, f"kind {kind}", *(f"{name} {value}" for name, value in fields.items())]
    partial = _leftover(path)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(partial, flags, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            if owner is not None:
                os.fchown(file.fileno(), owner, -1)
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if replace_file:
            partial.replace(path)
        else:
            path.hardlink_to(partial)  # unlike a rename, never replaces a key
    except FileExistsError as error:
        raise KeyFileExists(f"{path}: exists; a key is never overwritten, move it away") from error
    finally:
        partial.unlink(missing_ok=True)
        _sync_folder(path.parent)


def destroy_key(path: Path, *, in_place: bool = False) -> None:
    """Overwrite and remove a key whose time is over; of a symbolic link remove the link alone.

    in_place    nobody loads it as a key: a crash may leave it under its name, zeroed
    On a copy-on-write file system or a wearing-level SSD the old blocks may outlive this.
    """
    # Renamed first: a crash must leave no zeroed file that a party would try to load as its key.
    dying = path if in_place else _leftover(path)
    if not in_place:
        path.rename(dying)
        _sync_folder(path.parent)
    _wipe(dying)
    _sync_folder(path.parent)


def sweep_leftovers(folder: Path) -> int:
    """Wipe what a crash inside `write_key` or `destroy_key` left behind; give how many files.

    Call it at a party's start, before keys are loaded, while nobody writes keys into the folder.
    """
    found = [path for path in folder.iterdir() if _LEFTOVER.fullmatch(path.name)]
    mine = [path for path in found if path.is_file() and not path.is_symlink()]
    for path in mine:
        if path.stat().st_nlink == 1:
            _wipe(path)
        else:
            path.unlink()  # the other name is the finished key
    if mine:
        _sync_folder(folder)
    return len(mine)


def _leftover(path: Path) -> Path:
    """A name beside a key under which `sweep_leftovers` finds what a crash left."""
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}")


def _wipe(path: Path) -> None:
    # Root destroys keys in folders of other users: what their links lead to is not theirs to wipe.
    if not path.is_symlink():
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            file.write(b"\0" * os.fstat(handle).st_size)
            os.fsync(handle)
    path.unlink()


def kind_of(path: Path, *, owner: int | None = None) -> str:
    """What kind of key a file says it holds: `signing`, `hpke` or `host`. Raises KeyFileRefused."""
    lines = _lines(path, owner)
    kind = lines[0].removeprefix("kind ") if lines else ""
    if kind not in {"signing", "hpke", "host"}:
        raise KeyFileRefused(f"{path}: expected a key of kind signing, hpke or host")
    return kind


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot sync a folder
        sync(folder)


def _open(path: Path, owner: int) -> int:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise KeyFileAbsent(f"{path}: no such key file; see `pointillist keys generate`") from error
    except OSError as error:
        raise KeyFileRefused(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        _check_status(path, os.fstat(handle), owner)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_status(path: Path, status: os.stat_result, owner: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileRefused(f"{path}: expected a regular file")
    if status.st_uid != owner:
        raise KeyFileRefused(
            f"{path}: belongs to {user_name(status.st_uid)}, expected {user_name(owner)}'s; "
            f"{way_to_own(path, status.st_uid, owner)}"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~0o600:
        raise KeyFileRefused(
            f"{path}: mode is {mode:04o}, expected 0600; chmod 600 {path}, if it is a key file"
        )
    if status.st_size > MAX_FILE_BYTES:
        raise KeyFileRefused(f"{path}: expected at most {MAX_FILE_BYTES} B, got {status.st_size}")


def _lines(path: Path, owner: int | None) -> list[str]:
    """The lines after the first."""
    handle = _open(path, os.geteuid() if owner is None else owner)
    try:
        content = os.read(handle, MAX_FILE_BYTES + 1)
    finally:
        os.close(handle)
    first, *rest = content.decode("ascii", errors="replace").splitlines() or [""]
    if first != _FIRST_LINE:
        raise KeyFileRefused(f"{path}: not a key file of version 1")
    return rest


def _read(path: Path, kind: str, names: set[str], owner: int | None) -> dict[str, str]:
    fields: dict[str, str] = {}
    lines = _lines(path, owner)
    if lines and lines[0].startswith("kind ") and lines[0] != f"kind {kind}":
        raise KeyFileRefused(f"{path}: expected a key of kind {kind}, got one of another kind")
    for number, line in enumerate(lines, start=2):
        name, _, value = line.partition(" ")
        if name not in {"kind", *names} or name in fields:
            raise KeyFileRefused(f"{path}: line {number} is unknown or repeated")
        fields[name] = value
    if fields.get("kind") != kind or fields.keys() != {"kind", *names}:
        raise KeyFileRefused(f"{path}: expected a complete key of kind {kind}")
    return fields


def _hex(path: Path, fields: Mapping[str, str], name: str, length: int) -> bytes:
    try:
        value = bytes.fromhex(fields[name])
    except ValueError:
        value = b""
    if len(value) != length:
        raise KeyFileRefused(f"{path}: `{name}` should be {length} bytes in hex")
    return value


def _seconds(path: Path, fields: Mapping[str, str], name: str) -> int:
    text = fields[name]
    if not (text.isascii() and text.isdecimal() and len(text) <= 12 and int(text) <= MAX_TIME):
        raise KeyFileRefused(f"{path}: `{name}` should be seconds since 1970")
    return int(text)
