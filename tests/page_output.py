"""What pages show as a command's output, held against what the command says."""

from __future__ import annotations

import re
from typing import Final

from tests.page_commands import PAGES

_BLOCK: Final = re.compile(
    r"^```bash[^\n]*\n(.*?)^```\n+```text[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_VARIES: Final = re.compile(
    r"(?:[0-9a-f]{4}:){3,}[0-9a-f]{4}|\b(?=\w*\d)[0-9a-f]{8,}\b|\d[\d.,:]*Z?"
)
_FRAME: Final = re.compile(r"[│─╭╮╰╯█▁▂▃▄▅▆▇·]+")


def shown(page: str, command: str) -> list[list[str]]:
    """Give the lines of each output that stands behind a block which ends with a command."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        [line for line in output.splitlines() if line.strip() not in {"", "..."}]
        for typed, output in _BLOCK.findall(text)
        if typed.rstrip().splitlines()[-1] == f"pointillist {command}"
    ]


def missing(lines: list[str], said: str) -> list[str]:
    """Give the lines of a page that a command did not say, whatever its numbers, ids and times.

    What a line leaves out by `...` may be anything.
    """
    there = _alike(said)
    return [line for line in lines if any(_alike(part) not in there for part in line.split("..."))]


def _alike(text: str) -> str:
    return " ".join(_FRAME.sub(" ", _VARIES.sub("#", text)).split())
