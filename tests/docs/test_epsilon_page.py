"""Choosing epsilon: the page's table is the planner's, and its commands run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointillist.cli.output import ExitCode
from scripts.page_blocks import EPSILONS, HOSTS, PICTURE, ROOT, cost, table
from tests.page_commands import commands_of, run


def test_epsilon_page_shows_what_the_planner_says() -> None:
    page = (ROOT / "docs" / "choosing-epsilon.md").read_text(encoding="utf-8")
    found = {("2", 12_500): cost("2", 12_500), ("8", 100_000): cost("8", 100_000)}
    assert found["8", 100_000] is None
    cells = {
        (epsilon, hosts): found.get((epsilon, hosts)) for epsilon in EPSILONS for hosts in HOSTS
    }
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in table(cells)}
    shown = {
        line.split("|")[1].strip(): line.split("|")[2:-1]
        for line in page.splitlines()
        if "±" in line
    }
    assert shown["2"][1] == rows["2"][1]
    assert shown["8"][2] == rows["8"][2]
    assert sorted(shown) == sorted(EPSILONS)


def test_epsilon_picture_is_there_and_names_every_size() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert all(f"{hosts:,} hosts" in picture for hosts in HOSTS)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands_of("choosing-epsilon.md"))
def test_commands_of_the_epsilon_page_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(command, tmp_path, monkeypatch)
    assert ended.code == ExitCode.OK, ended.said
