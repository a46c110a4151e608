"""What commands of parties share: identity keys, configuration, how a party does, its doctor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console

from aggregator.party.config import HelperConfig, load_helper_config, load_leader_config
from aggregator.protocol.directory import OneKeyTwice, PinnedParties
from pointillist.installation import sample_hint
from pointillist.table import Column, table_text
from privacy.signing import SigningKey
from transport.files.keyfiles import load_signing_key
from transport.process.doctor_checks import CheckVerdict, Finding, named, worst
from transport.process.privileges import PrivilegeError, drop_to
from transport.settings.config import ConfigError
from wire.catalogue import Catalogue, CatalogueError

from .output import (
    CommandError,
    ConfigOption,
    ExitCode,
    JsonFlag,
    emit,
    examples,
    need_file,
    reported,
    say,
    usage_error,
)

T = TypeVar("T")
CatalogueFile = Annotated[
    Path | None,
    typer.Option("--catalogue", help="The catalogue that tasks name; the shipped one without it."),
]
STALE_S: Final = 30
"""A party that runs says how it is every two seconds."""


def load_catalogue(path: Path | None) -> Catalogue:
    if path is not None:
        need_file(path, "a catalogue", "TOML: docs/contributing.md")
    with reported(ExitCode.USAGE, CatalogueError):
        return Catalogue.load(path)


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


def pinned_parties(leader_pk: bytes, helper_pk: bytes) -> PinnedParties:
    with reported(ExitCode.USAGE, OneKeyTwice):
        return PinnedParties(leader_pk, helper_pk)


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
    from aggregator.party.health import is_present, read_status

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


LEADER_EPILOG: Final = examples("""
pointillist leader doctor --config leader.toml
pointillist leader doctor -c leader.toml --json | jq '.findings[] | select(.verdict != "ok")'""")
HELPER_EPILOG: Final = LEADER_EPILOG.replace("leader", "helper")
_STYLES: Final = {"ok": "green", "absent": "yellow", "unmeasured": "red", "broken": "red"}
_PARTY: Final = "the {} does not do its work"


def leader_doctor(config: ConfigOption, json: JsonFlag = False) -> None:
    """Say what keeps the Leader from releasing, and the one thing to do about each.

    It looks at the clock, keys, folders, the log with its topics, the Helper and what lies signed;
    it changes nothing. Started as root it looks with the eyes of the Leader's user. Exit code 1
    where something is broken; what is merely absent is no failure.
    """
    from pointillist.party_doctor.party_findings import leader_findings

    loaded, root = read_config(config, "leader", load_leader_config), os.geteuid() == 0
    look_as(loaded.user)
    tell_findings(leader_findings(loaded, started_by_root=root), json, _PARTY.format("Leader"))


def helper_doctor(config: ConfigOption, json: JsonFlag = False) -> None:
    """Say what keeps the Helper from answering, and the one thing to do about each.

    It looks at the clock, keys, folders, certificate, witness and what lies signed; it changes
    nothing. Started as root it looks with the eyes of the Helper's user. Exit code 1 where
    something is broken; what is merely absent is no failure.
    """
    from pointillist.party_doctor.party_findings import helper_findings

    loaded, root = load_helper(config), os.geteuid() == 0
    look_as(loaded.user)
    tell_findings(helper_findings(loaded, started_by_root=root), json, _PARTY.format("Helper"))


def look_as(user: str, capabilities: Sequence[str] = ()) -> None:
    """Become the program's user where root can; a user that does not exist yet is not made."""
    if os.geteuid() != 0:
        return
    try:
        say(drop_to(user, keep_caps=capabilities).line)
    except (PrivilegeError, LookupError) as error:
        say(f"looks as root: {error}")


def tell_findings(found: Iterable[Finding], json: bool, kept_from: str) -> None:
    """Print what was found.

    kept_from   what does not go on where something is broken
    Raises      CommandError where something is broken, or asked for and not measured
    """
    findings = list(found)
    verdict = worst(findings)
    emit({"verdict": verdict, "findings": findings}, json, lambda _body: show_findings(findings))
    if verdict is CheckVerdict.BROKEN:
        line = f"{kept_from} until this is put right: {named(findings, verdict)}"
        raise CommandError(ExitCode.FAILED, line)
    if verdict is CheckVerdict.UNMEASURED:
        line = f"asked for and not measured here: {named(findings, verdict)}"
        raise CommandError(ExitCode.FAILED, line)


def show_findings(findings: Sequence[Finding]) -> None:
    rows: list[tuple[str, Finding | None]] = []
    for at, finding in enumerate(findings):
        if not at or findings[at - 1].group != finding.group:
            rows.append((finding.group, None))
        rows.append((f"  {finding.name}", finding))
    console = Console()
    console.print(table_text(_COLUMNS, rows, console.width, "--json has them"))


def _of(write: Callable[[Finding], str]) -> Callable[[tuple[str, Finding | None]], str]:
    return lambda row: "" if row[1] is None else write(row[1])


_COLUMNS: Final = (
    Column("", itemgetter(0), style=lambda row: "bold" if row[1] is None else ""),
    Column(
        "", _of(lambda finding: finding.verdict.value),
        style=_of(lambda finding: _STYLES[finding.verdict.value]),
    ),
    Column("found", _of(attrgetter("found")), folds=True),
    Column("what to do", _of(lambda finding: finding.do or ""), folds=True, below=True),
)  # fmt: skip
