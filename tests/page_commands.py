"""Commands as they stand on the documentation's pages, and what pages show of their output."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest

from pointillist.cli import root as cli

TESTS = Path(__file__).resolve().parent
DOCS = TESTS.parent / "docs"
PAGES = {
    path.name: path
    for path in (*DOCS.glob("*.md"), DOCS.parent / "README.md", DOCS.parent / "SECURITY.md")
}
_INLINE = re.compile(r"`([^`\n]+)`")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_COMMAND = re.compile(r"(?:^|-- |\$ |sudo |/)pointillist ([a-z].*)")
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"^(?:sudo )?make ([a-z-]+)", re.MULTILINE)
_ELSEWHERE = re.compile(r"(/etc/pointillist|/var/lib/pointillist|/srv)\b")
_WRONG = re.compile(r"No such (option|command)|Missing (option|argument)|unexpected extra|Invalid")

_SHOWN = re.compile(
    r"^```bash[^\n]*\n(.*?)^```\n+```text[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_VARIES = re.compile(r"(?:[0-9a-f]{4}:){3,}[0-9a-f]{4}|\b(?=\w*\d)[0-9a-f]{8,}\b|\d[\d.,:]*Z?")
_FRAME = re.compile(r"[│─╭╮╰╯█▁▂▃▄▅▆▇·]+")


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


def every_command_of(page: str, *, fenced_alone: bool = False) -> list[list[str]]:
    """Give what follows `pointillist` in a page's blocks, and in its text, in words.

    fenced_alone    of blocks that are to be typed, not of output or text
    """
    text = PAGES[page].read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = [
        block
        for language, block in _BLOCK.findall(text)
        if not (fenced_alone and language == "text")
    ]
    lines = [line for block in blocks for line in _typed_lines(block)]
    if not fenced_alone:
        lines += _INLINE.findall(_BLOCK.sub("", text))
    found = (_COMMAND.search(line) for line in lines)
    return [_words(match[1]) for match in found if match]


def targets_of(page: str) -> set[str]:
    """Give the targets of the Makefile that a page has in its blocks and as code in its text."""
    text = PAGES[page].read_text(encoding="utf-8")
    blocks = "".join(block for _, block in _BLOCK.findall(text))
    return set(_TARGET.findall(blocks)) | set(re.findall(r"`make ([a-z-]+)", text))


@cache
def _known() -> dict[str, list[str]]:
    return {" ".join(words): words for page in PAGES for words in every_command_of(page)}


def words_of(command: str) -> list[str]:
    """Give the words of a command as a page has it. Raises KeyError where none has."""
    return _known()[command]


def _typed_lines(block: str) -> Iterator[str]:
    """Give a block's lines; one with an open quotation mark goes on in the next."""
    begun = ""
    for line in block.splitlines():
        begun = f"{begun} {line.strip()}" if begun else line.partition(" #")[0]
        if not (_COMMAND.search(begun) and _goes_on(begun)):
            yield begun
            begun = ""


def _goes_on(line: str) -> bool:
    try:
        shlex.split(line)
    except ValueError:
        return True
    return False


def _words(line: str) -> list[str]:
    words = shlex.split(line)
    return list(takewhile(lambda word: word not in {"|", ">", ">>", "&&", "&"}, words))


def unknown_in(words: Sequence[str]) -> list[str]:
    """Give what of a command the product does not know: a part of its name, or options."""
    node, path = _found(words)
    left = words[len(path) :]
    if left and not left[0].startswith("-") and hasattr(node, "get_command"):
        return [] if node.invoke_without_command else [left[0]]
    known = {"--help", *(name for one in node.params for name in (*one.opts, *one.secondary_opts))}
    return [name for name in _OPTION.findall(" ".join(left)) if name not in known]


def path_of(words: Sequence[str]) -> tuple[str, ...]:
    """Give the name of a command: `leader roster build`, without what follows."""
    return _found(words)[1]


def options_of(words: Sequence[str]) -> frozenset[str]:
    return frozenset(_OPTION.findall(" ".join(words)))


def _found(words: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    node: Any = _product()
    path: list[str] = []
    for word in words:
        below = (
            node.get_command(click.Context(node), word) if hasattr(node, "get_command") else None
        )
        if below is None:
            break
        node = _loaded(below) if isinstance(below, cli.LazyGroup) else below
        path.append(word)
    return node, tuple(path)


@cache
def _product() -> Any:
    return cli.command()


@cache
def _loaded(group: cli.LazyGroup) -> Any:
    return group.load()


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


def shown(page: str, command: str) -> list[list[str]]:
    """Give the lines of each output that stands behind a block which ends with a command."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        [line for line in output.splitlines() if line.strip() not in {"", "..."}]
        for typed, output in _SHOWN.findall(text)
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
