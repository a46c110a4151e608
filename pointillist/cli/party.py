"""What `leader` and `helper` have in common: how they say whether they run and do their work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .output import CommandError, ExitCode, emit, reported, usage_error

STALE_S: Final = 30
"""A party that runs says how it is every two seconds."""


def show_status(path: Path, party: str, json: bool) -> None:
    """Show whether a party runs and what it last said; the exit code says it too.

    path        its status file
    party       `leader` or `helper`
    """
    from aggregator.helper_shell import read_status
    from aggregator.party_health import is_present

    if not path.exists():
        raise usage_error(
            f"{path}: the {party.capitalize()} has not run here yet",
            f"start it: pointillist {party} run --config FILE",
        )
    with reported(ExitCode.UNAVAILABLE, PermissionError, hint="ask as root or as its own user"):
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
