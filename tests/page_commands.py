"""Commands as they stand on a page of the documentation, run in this process."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from pointillist.cli import root as cli

DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(r"(/etc/pointillist|/var/lib/pointillist|/srv)\b")
_WRONG = re.compile(r"No such (option|command)|Missing (option|argument)|unexpected extra|Invalid")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, and what it said on either stream."""

    code: int
    said: str


def commands_of(page: str) -> list[str]:
    """Give the commands of a page's blocks, each on one line; a page without any is an error."""
    blocks = _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    found = [line for language, block in blocks if not language for line in _lines(block)]
    if not found:
        raise ValueError(f"expected commands in {page}, found none")
    return found


def _lines(block: str) -> Iterator[str]:
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("pointillist "):
            yield line


def run(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Run it, with a folder in place of the system's; fails where the command itself is wrong.

    What it needs (a configuration, a log, a role) may be absent: then it says so, and ends with
    another code than 0.
    """
    words = shlex.split(_ELSEWHERE.sub(str(folder), command), comments=True)
    monkeypatch.setattr(sys, "argv", words)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        cli.main()
    said = out.getvalue() + err.getvalue()
    assert not _WRONG.search(said), f"{command}\n{said}"
    code = ended.value.code
    return Ended(code if isinstance(code, int) else 0, said)
