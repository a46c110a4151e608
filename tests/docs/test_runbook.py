"""The runbook has a row for every alert, every reason of a refusal and every exit code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pointillist.cli.output import ExitCode
from tests.page_commands import DOCS, commands_of, run
from wire.rejection import Reason

ROOT = DOCS.parent
PAGE = (DOCS / "runbook.md").read_text(encoding="utf-8")
RULES = ROOT / "deploy" / "prometheus" / "pointillist.rules.yml"


def rows(section: str) -> list[str]:
    """Give the rows of a section's table, without its head."""
    text = re.split(rf"^## {section}$", PAGE, flags=re.MULTILINE)[1].split("\n## ")[0]
    found = [line for line in text.splitlines() if line.startswith("|")]
    return found[2:]


def named(section: str) -> list[str]:
    """Give the words in the first cell of each row."""
    return [word for row in rows(section) for word in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_runbook_has_every_alert_once() -> None:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert sorted(named("Alerts")) == sorted(alerts)


def test_runbook_has_every_reason_of_a_refusal_once() -> None:
    assert sorted(named("Refusals")) == sorted(reason.value for reason in Reason)


def test_runbook_has_every_exit_code() -> None:
    found = [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in rows("Exit codes")]
    assert found == [(str(int(code)), f"`{code.name}`") for code in ExitCode]


@pytest.mark.parametrize("section", ["Alerts", "Refusals", "Exit codes", "Outages", "Lost keys"])
def test_runbook_says_in_every_row_what_to_do(section: str) -> None:
    for row in rows(section):
        assert all(cell.strip() for cell in row.strip("|").split("|")), row


@pytest.mark.parametrize("command", commands_of("runbook.md"))
def test_commands_of_the_runbook_are_commands(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run(command, tmp_path, monkeypatch)
    made = ("pointillist keys generate", "pointillist operator keygen")
    assert (ended.code == ExitCode.OK) == command.startswith(made), ended.said
    assert ended.code in set(ExitCode), ended.said
