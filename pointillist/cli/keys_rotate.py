"""`pointillist keys rotate` and `destroy`: another sealing key at once, and the end of any key."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .output import ExitCode, JsonFlag, YesFlag, emit, need_file, reported, usage_error
from .party import key_owner

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
    from privacy.sealing import HpkeKeyPair
    from transport.files.keyfiles import HpkeKeyFile, destroy_key, write_hpke_key
    from wire.fields import key_id

    earlier = sorted(folder.glob("*.hpke"))
    until_s = (now_s // DAY_S + 1) * DAY_S + OVERLAP_S
    pair = HpkeKeyPair.generate()
    named = key_id(pair.public_bytes).hex()
    # Two of one second have two names.
    path = folder / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime(now_s))}-{named[:16]}.hpke"
    # A role's files are its own user's.
    owner = (folder / "identity.key").lstat().st_uid if os.geteuid() == 0 else None
    write_hpke_key(path, HpkeKeyFile(pair, now_s, until_s), owner=owner)
    for old in earlier if destroy else ():
        destroy_key(old)
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
    from transport.files.keyfiles import KeyFileRefused, destroy_key, kind_of

    for path in files:
        need_file(path, "a key file", "`pointillist keys show` lists them")
        with reported(ExitCode.USAGE, KeyFileRefused):
            kind_of(path, owner=key_owner(path))
    _confirm(files, yes)
    for path in files:
        destroy_key(path)
    emit({"destroyed": [str(path) for path in files]}, json)


def _confirm(files: Sequence[Path], yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage_error("this asks first, and there is no terminal to ask at", "add --yes")
    names = ", ".join(map(str, files))
    typer.confirm(f"Destroy {names} for good?", abort=True, err=True)
