"""Commands on the pages about containers, Kubernetes and Slurm are those that the product has."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
from click.testing import CliRunner

from pointillist.cli.root import command

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"containers.md": 2, "kubernetes.md": 1, "slurm.md": 3}
"""Each page, and the fewest commands with options that it has."""


def commands_of(page: str) -> list[list[str]]:
    """Every command of the product in a page's blocks and inline code, in words."""
    text = (DOCS / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"```\n(.*?)```", text, re.DOTALL))
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [*blocks.splitlines(), *inline]
    found = [re.search(r"(?:^|-- )pointillist (.+)", line) for line in lines]
    return [shlex.split(match[1]) for match in found if match and "|" not in match[1]]


def unknown_in(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What of a command the product does not know: the command itself, or options."""
    names = list(takewhile(lambda word: re.fullmatch("[a-z-]+", word) and word[0] != "-", words))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    help_of = CliRunner().invoke(command(), [*names, "--help"])  # type: ignore[arg-type]
    if help_of.exit_code:
        return names
    return [word for word in words if word.startswith("--") and f"{word} " not in help_of.output]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_page_are_the_products(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = commands_of(page)
    assert sum(any(word.startswith("--") for word in words) for words in commands) >= PAGES[page]
    unknown = {" ".join(words): unknown_in(words, monkeypatch) for words in commands}
    assert {line: found for line, found in unknown.items() if found} == {}


def test_a_command_that_is_not_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown_in(["operator", "vouch", "--host"], monkeypatch) == ["--host"]
    assert unknown_in(["agent", "stragglers"], monkeypatch) == ["agent", "stragglers"]
