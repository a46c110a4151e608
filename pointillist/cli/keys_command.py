"""`pointillist keys`: key files from their making to their end; no command prints a secret."""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from aggregator.state.state_file import StorageUnavailable, write_all_durably
from pointillist.installation import default_folder, default_folders, public_fingerprint
from pointillist.table import terminal_columns, value_lines
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from transport.files import keyfiles
from transport.files.private_files import give
from transport.process.privileges import ensure_users
from wire.epoch import KeyAnnouncement
from wire.fields import host_id, key_id

from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    YesFlag,
    as_text,
    confirm,
    emit,
    examples,
    need_file,
    refused,
    reported,
    usage_error,
)
from .party import key_owner, load_identity

DAY_S = 86_400
OVERLAP_S: Final = 3900
ROTATE_EPILOG: Final = (
    "Example: pointillist keys rotate helper --folder /var/lib/pointillist/helper/keys"
)
DESTROY_EPILOG: Final = "Example: pointillist keys destroy acme-2026.key --yes"


def new_sealing_key(party: str, folder: Path, *, destroy: bool, now_s: int) -> dict[str, Any]:
    """Write a sealing key that is in force from now to the end of the day, beside the others.

    folder      of the party's keys
    destroy     the others too, so that nothing sealed to them opens any more
    Returns     what is said of it
    """
    earlier = sorted(folder.glob("*.hpke"))
    until_s = (now_s // DAY_S + 1) * DAY_S + OVERLAP_S
    pair = HpkeKeyPair.generate()
    named = key_id(pair.public_bytes).hex()
    # Two of one second have two names.
    path = folder / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime(now_s))}-{named[:16]}.hpke"
    # A role's files are its own user's.
    owner = (folder / "identity.key").lstat().st_uid if os.geteuid() == 0 else None
    keyfiles.write_hpke_key(path, keyfiles.HpkeKeyFile(pair, now_s, until_s), owner=owner)
    for old in earlier if destroy else ():
        keyfiles.destroy_key(old)
        old.with_suffix(".announcement").unlink(missing_ok=True)
    return {
        "file": str(path),
        "party": party,
        "key_id": named,
        "not_before": now_s,
        "not_after": until_s,
        "destroyed": len(earlier) if destroy else 0,
    }


def destroy(
    files: Annotated[list[Path], typer.Argument(help="Key files of any role.")],
    yes: YesFlag = False,
    json: JsonFlag = False,
) -> None:
    """Overwrite and remove key files; what was signed with them stays valid where it is pinned.

    Take a key out of every configuration that pins it first. On a copy-on-write file system or an
    SSD the old blocks may outlive this, and so may backups.
    """
    for path in files:
        need_file(path, "a key file", "`pointillist keys show` lists them")
        with reported(ExitCode.USAGE, keyfiles.KeyFileRefused):
            keyfiles.kind_of(path, owner=key_owner(path))
    confirm(yes, f"Destroy {', '.join(map(str, files))} for good?")
    for path in files:
        keyfiles.destroy_key(path)
    emit({"destroyed": [str(path) for path in files]}, json)


_EXAMPLES = examples("""
pointillist keys generate leader   an aggregator's identity
pointillist keys generate host   this host's identity; its GPUs are added when it joins
pointillist keys show   fingerprints of all key files here
pointillist keys announce helper   the sealing key of today, signed, ready to be published
pointillist keys check --json   exit code 3 when any file must not be used""")

app = typer.Typer(
    help="Key files: generate, show, announce, check, rotate, destroy.", epilog=_EXAMPLES,
    no_args_is_help=True,
)  # fmt: skip


class KeyRole(StrEnum):
    LEADER = "leader"
    HELPER = "helper"
    WITNESS = "witness"
    HOST = "host"


class Party(StrEnum):
    LEADER = "leader"
    HELPER = "helper"


HOST_USER = "pointillist-agent"


FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        envvar="POINTILLIST_KEYS",
        help="Where key files lie, ROLE/ inside. For root a host's are in /etc/pointillist/keys, "
        "a party's in /var/lib/pointillist/ROLE/keys.",
        show_default=False,
    ),
]


@app.command(epilog="Example: pointillist keys generate helper --folder ./keys")
def generate(
    role: Annotated[KeyRole, typer.Argument(help="Whose identity.")],
    folder: FolderOption = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            help="UUID of a GPU of this host; repeat it. Only for `host`, where agent.toml names "
            'its GPUs: with gpus = "auto" the key is bound to them when the host joins.',
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Make an Ed25519 identity; a host's is bound to this machine and its GPUs."""
    if gpu and role is not KeyRole.HOST:
        raise usage_error(f"--gpu belongs to a host, not to the {role}")
    path, key = _prepared(folder, role) / "identity.key", SigningKey.generate()
    if role is KeyRole.HOST:
        binding = keyfiles.host_binding(keyfiles.machine_id(), gpu or [])
        keyfiles.write_host_key(path, keyfiles.HostKey(key, binding), owner=_owner(role))
        # Of a key that was moved away: which GPUs that one was bound to.
        path.with_name(f"{path.name}.gpus").unlink(missing_ok=True)
    else:
        keyfiles.write_signing_key(path, key, owner=_owner(role))
    shown = show_file(path)
    if "error" in shown:
        raise refused(shown["error"])
    emit(shown, json)


@app.command(epilog="Example: pointillist keys show --json | jq -r '.[].fingerprint'")
def show(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Key files; all of the folder without them.")
    ] = None,
    folder: FolderOption = None,
    json: JsonFlag = False,
) -> None:
    """Show public keys and fingerprints, never a secret.

    Of a file that must not be used it says why; where you named it the exit code is 3.
    """
    shown = _shown(files, folder, json)
    if files:
        _refuse_bad(shown)


@app.command(epilog="Example: pointillist keys check --folder /etc/pointillist/keys || echo broken")
def check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Key files; all of the folder without them.")
    ] = None,
    folder: FolderOption = None,
    json: JsonFlag = False,
) -> None:
    """Check owner, mode and contents of key files; exit code 3 when one must not be used."""
    _refuse_bad(_shown(files, folder, json))


def _shown(files: list[Path] | None, folder: Path | None, json: bool) -> list[dict[str, Any]]:
    shown = [show_file(path) for path in _chosen(files, folder)]
    emit(shown, json, lambda rows: "\n\n".join(map(_row, rows)))
    return shown


def _refuse_bad(shown: list[dict[str, Any]]) -> None:
    bad = [row["file"] for row in shown if "error" in row]
    if bad:
        raise refused(f"{len(bad)} of {len(shown)} key files must not be used: {', '.join(bad)}")


@app.command(
    epilog="Example: pointillist keys announce leader --day 2027-01-31   tomorrow's, ahead of time"
)
def announce(
    party: Annotated[Party, typer.Argument(help="Who announces.")],
    folder: FolderOption = None,
    day: Annotated[
        str | None,
        typer.Option(help="UTC day as YYYY-MM-DD; today without it.", show_default=False),
    ] = None,
    overlap_s: Annotated[
        int, typer.Option(help="How long the key stays valid after its day, seconds.", min=0)
    ] = 3900,
    json: JsonFlag = False,
) -> None:
    """Make the HPKE key of a day, and the signed announcement that agents seal to.

    The announcement is written beside the key as DAY.announcement. Announcing the same day
    again signs the same key again. Keys whose longest retention is over are for `leader run` and
    `helper run` to destroy.
    """
    start = _day_start(day)
    where = (folder or default_folder(party)) / party
    identity = keyfiles.load_signing_key(where / "identity.key", owner=_owner(party))
    path = where / f"{time.strftime('%Y-%m-%d', time.gmtime(start))}.hpke"
    if not path.exists():
        made = keyfiles.HpkeKeyFile(HpkeKeyPair.generate(), start, start + DAY_S + overlap_s)
        keyfiles.write_hpke_key(path, made, owner=_owner(party))
    key = keyfiles.load_hpke_key(path, owner=_owner(party))
    draft = KeyAnnouncement(
        identity.public_bytes, key.pair.public_bytes, key.not_before, key.not_after
    )
    signed = replace(draft, signature=identity.sign(draft.unsigned()))
    target = path.with_suffix(".announcement")
    with reported(ExitCode.UNAVAILABLE, StorageUnavailable):
        write_all_durably({target: signed.encode()})
    emit(show_file(path) | {"announcement": str(target)}, json)


@app.command(epilog=ROTATE_EPILOG)
def rotate(
    party: Annotated[Party, typer.Argument(help="Whose sealing key.")],
    folder: FolderOption = None,
    destroy_others: Annotated[
        bool, typer.Option("--destroy-others", help="At once: what is sealed to them is lost.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Make another sealing key for the rest of the day; sealing keys change daily without this.

    Start the party again afterwards: it announces the key, and hosts seal to it from their next
    epoch on, within an hour. With --destroy-others nothing that waits for the others is released,
    nor opened by whoever took them after this.
    """
    where = (folder or default_folder(party)) / party
    load_identity(where / "identity.key")
    emit(new_sealing_key(party, where, destroy=destroy_others, now_s=int(time.time())), json)


app.command(epilog=DESTROY_EPILOG)(destroy)


def _day_start(day: str | None) -> int:
    if day is None:
        return int(time.time()) // DAY_S * DAY_S
    try:
        return int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError as error:
        raise usage_error(f"--day: expected YYYY-MM-DD, got {day!r}") from error


def show_file(path: Path) -> dict[str, Any]:
    """What may be said about one key file; of a refused one its name and the reason."""
    owner = _owner(path.parent.name)
    try:
        match keyfiles.kind_of(path, owner=owner):
            case "hpke":
                key = keyfiles.load_hpke_key(path, owner=owner)
                public = key.pair.public_bytes
                more: dict[str, Any] = {
                    "key_id": key_id(public).hex(),
                    "not_before": key.not_before,
                    "not_after": key.not_after,
                }
                kind = "hpke"
            case "host":
                host = keyfiles.read_host_key(path, owner=owner)
                kind, public = "host", host.signing.public_bytes
                more = {
                    "public_key": public.hex(),
                    "host_id": host_id(public).hex(),
                    "ledger_exists": host.ledger_exists,
                }
            case _:
                kind, public = "signing", keyfiles.load_signing_key(path, owner=owner).public_bytes
                more = {"public_key": public.hex()}
    except keyfiles.KeyFileRefused as error:
        return {"file": str(path), "error": str(error)}
    return {"file": str(path), "kind": kind, "fingerprint": public_fingerprint(public), **more}


def _user(role: str) -> str:
    return HOST_USER if role == KeyRole.HOST else f"pointillist-{role}"


def _owner(role: str) -> int | None:
    """Whose file a role's key must be: for root that role's own user, else the caller."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(_user(role)).pw_uid
    except KeyError:
        return None


def _prepared(folder: Path | None, role: KeyRole) -> Path:
    """The role's folder; its own user may write there, as an agent marks its ledger in its key."""
    where = folder or default_folder(role)
    try:
        ensure_users()
        where.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        (where / role).mkdir(exist_ok=True, mode=0o700)
        if os.geteuid() == 0:
            give(where / role, _user(role))
    except OSError as error:
        raise CommandError(ExitCode.UNAVAILABLE, f"{where}: {error.strerror}") from error
    return where / role


def _chosen(files: list[Path] | None, folder: Path | None) -> list[Path]:
    if files:
        return [
            need_file(path, "a key file", "`pointillist keys generate` makes one") for path in files
        ]
    places = default_folders() if folder is None else [folder]
    found = [
        p for place in places for p in sorted(place.rglob("*")) if p.suffix in {".key", ".hpke"}
    ]
    if not found:
        where = ", ".join(map(str, places))
        raise usage_error(f"{where}: no key files", "pointillist keys generate leader makes one")
    return found


def _row(row: dict[str, Any]) -> str:
    head = f"{row['file']}  {row.get('kind', 'REFUSED')}"
    told = [(n.ljust(_NAMES), as_text(n, v)) for n, v in row.items() if n not in {"file", "kind"}]
    return "\n  ".join([head, *value_lines(told, terminal_columns() - 2)])


_NAMES: Final = 12
