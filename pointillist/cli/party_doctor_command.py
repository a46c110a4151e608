"""`pointillist leader doctor` and `helper doctor`: what keeps a party from its work."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .findings_table import show_findings
from .output import CommandError, ExitCode, JsonFlag, emit, say
from .party import load_helper, read_config

if TYPE_CHECKING:
    from transport.process.doctor_findings import Check

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="Its configuration.")]

LEADER_EPILOG: Final = """Examples:

pointillist leader doctor --config leader.toml

pointillist leader doctor -c leader.toml --json | jq '.findings[] | select(.verdict != "ok")'"""
HELPER_EPILOG: Final = LEADER_EPILOG.replace("leader", "helper")


def leader_doctor(config: ConfigOption, json: JsonFlag = False) -> None:
    """Say what keeps the Leader from releasing, and the one thing to do about each.

    It looks at the clock, keys, folders, the log with its topics, the Helper and what lies signed;
    it changes nothing. Started as root it looks with the eyes of the Leader's user. Exit code 1
    where something is broken; what is merely absent is no failure.
    """
    from aggregator.party.party_config import load_leader_config
    from pointillist.party_doctor.party_findings import leader_findings

    loaded, root = read_config(config, "leader", load_leader_config), os.geteuid() == 0
    _look_as(loaded.user)
    _tell("Leader", leader_findings(loaded, started_by_root=root), json)


def helper_doctor(config: ConfigOption, json: JsonFlag = False) -> None:
    """Say what keeps the Helper from answering, and the one thing to do about each.

    It looks at the clock, keys, folders, certificate, witness and what lies signed; it changes
    nothing. Started as root it looks with the eyes of the Helper's user. Exit code 1 where
    something is broken; what is merely absent is no failure.
    """
    from pointillist.party_doctor.party_findings import helper_findings

    loaded, root = load_helper(config), os.geteuid() == 0
    _look_as(loaded.user)
    _tell("Helper", helper_findings(loaded, started_by_root=root), json)


def _look_as(user: str) -> None:
    """Become the party's user where root can; a user that does not exist yet is not made."""
    from transport.process.privileges import PrivilegeError, drop_to

    if os.geteuid() != 0:
        return
    try:
        say(drop_to(user).line)
    except (PrivilegeError, LookupError) as error:
        say(f"looks as root: {error}")


def _tell(party: str, checks: Iterable[tuple[str, str, Check]], json: bool) -> None:
    from transport.process.doctor_findings import CheckVerdict, examine, named, worst

    findings = list(examine(checks))
    verdict = worst(findings)
    body = {"verdict": verdict, "findings": findings}
    emit(body, json, lambda _body: show_findings(findings))
    if verdict is CheckVerdict.BROKEN:
        raise CommandError(
            ExitCode.FAILED,
            f"the {party} does not do its work until this is put right: {named(findings, verdict)}",
        )
