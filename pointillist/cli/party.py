"""What commands of parties share: identity keys, configuration, and how a party does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from aggregator.party.config import HelperConfig, load_helper_config
from aggregator.party.health import is_present, read_status
from pointillist.installation import sample_hint
from privacy.signing import SigningKey
from transport.files.keyfiles import load_signing_key
from transport.settings.config import ConfigError

from .output import CommandError, ExitCode, emit, need_file, reported, usage_error

T = TypeVar("T")
STALE_S: Final = 30
"""A party that runs says how it is every two seconds."""


def load_identity(path: Path) -> SigningKey:
    """An identity key; root may use a role's own file, nobody else another's."""
    need_file(path, "an identity key", "`pointillist keys generate leader` or `helper` makes one")
    return load_signing_key(path, owner=key_owner(path))


def key_owner(path: Path) -> int | None:
    """Whose file a role's key must be: root may use any role's own, others theirs."""
    return path.stat().st_uid if os.geteuid() == 0 else None


def public_key(text: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise usage_error("an identity key has 32 bytes in hex", "pointillist keys show")
    return value


def read_config(path: Path, party: str, read: Callable[[Path], T]) -> T:
    """Read a party's configuration; `read` raises ConfigError. Raises CommandError."""
    sample = sample_hint(f"{party}.toml")
    need_file(path, f"the {party.capitalize()}'s configuration", sample)
    with reported(ExitCode.USAGE, ConfigError, hint=sample):
        return read(path)


def load_helper(path: Path) -> HelperConfig:
    return read_config(path, "helper", load_helper_config)


def show_status(path: Path, party: str, json: bool) -> None:
    """Show whether a party runs and what it last said; the exit code says it too.

    path        its status file
    party       `leader`, `helper` or `witness`
    """
    if not path.exists():
        raise usage_error(
            f"{path}: the {party.capitalize()} has not run here yet",
            f"start it: pointillist {party} run --config FILE",
        )
    with reported(ExitCode.UNAVAILABLE, PermissionError):
        alive = is_present(path)
        with reported(ExitCode.FAILED, ValueError):
            said = read_status(path)
    said_s = int(time.time()) - int(said.get("time", 0))
    body = {"alive": alive, "said_s_ago": said_s, **said}
    emit(body, json, lambda _: _text(party, body))
    _end(party, body)


def _text(party: str, body: Mapping[str, Any]) -> None:
    started = {"pid": body["pid"], "since": body["started"]} if body["alive"] else {}
    state = {"runs": body["alive"], **started, "said": body["time"]}
    emit({party: state}, json=False)
    left = {"alive", "said_s_ago", "pid", "version", "started", "time", "ready"}
    emit({name: value for name, value in body.items() if name not in left}, json=False)


def _end(party: str, body: Mapping[str, Any]) -> None:
    """Give scripts the answer as an exit code.

    Raises      CommandError unless the party runs and nothing keeps it from its work
    """
    name = party.capitalize()
    if not body["alive"]:
        raise CommandError(
            ExitCode.UNAVAILABLE,
            f"the {name} does not run",
            f"start it: pointillist {party} run --config FILE",
        )
    if body["said_s_ago"] > STALE_S:
        raise CommandError(
            ExitCode.FAILED,
            f"the {name} runs but has said nothing for {body['said_s_ago']} s",
            "its log says why: a full disk, or a loop that stands",
        )
    if body["troubles"]:
        raise CommandError(ExitCode.FAILED, f"the {name} waits: {', '.join(body['troubles'])}")
