"""Which commands of the pages are run, by which test, and why the others are not."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from tests.page_commands import PAGES, TESTS, every_command_of, options_of, path_of
from transport.settings.config import read_table

STORIES: Final = TESTS / "docs" / "stories"
TABLE: Final = STORIES / "commands.toml"
_TYPES: Final = {"type", "begin"}
"""Methods of `tests.page_machine.PageMachine` that run a command of a page."""


class RunElsewhere(NamedTuple):
    """Commands that another test, below tests/, runs than those of `tests/docs/stories`.

    pages       pages, of whose blocks it runs every command
    """

    test: str
    commands: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()


@cache
def run_elsewhere() -> tuple[RunElsewhere, ...]:
    return tuple(RunElsewhere(**row) for row in read_table(TABLE)["run"])


@cache
def not_run() -> tuple[str, ...]:
    """Give the commands that no test runs; the table says why."""
    return tuple(
        command for row in read_table(TABLE).get("not_run", ()) for command in row["commands"]
    )


def typed_in(tree: ast.AST) -> set[str]:
    """Give the commands that a test types: what stands first in a call, as a plain text."""
    return {
        call.args[0].value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _TYPES
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


def typed_here() -> set[str]:
    files = [*STORIES.glob("test_*.py"), STORIES / "conftest.py"]
    return set().union(*(typed_in(ast.parse(file.read_text(encoding="utf-8"))) for file in files))


def commands_of_pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for words in every_command_of(page):
            yield page, " ".join(words)


def run_by_a_test() -> set[str]:
    rows = run_elsewhere()
    blocks = [
        " ".join(words)
        for row in rows
        for page in row.pages
        for words in every_command_of(page, fenced_alone=True)
    ]
    return {*blocks, *(command for row in rows for command in row.commands), *typed_here()}


class Runs:
    """What is run of what the pages have, where a command may stand for its like.

    A command is run where one with its name and its options is, with whatever values, and with or
    without a value behind its name as it has one. A name that stands alone, with nothing behind it,
    is run where any command of that name is.
    """

    def __init__(self, commands: Iterable[str]) -> None:
        self._commands = set(commands)
        self._alike = set(map(_alike, self._commands))
        paths = [path_of(command.split()) for command in self._commands]
        self._names = {path[:n] for path in paths for n in range(1, len(path) + 1)}

    def has(self, command: str) -> bool:
        words = command.removesuffix(" ...").split()
        alone = tuple(words) == path_of(words) and tuple(words) in self._names
        return command in self._commands or _alike(command) in self._alike or alone


def _alike(command: str) -> tuple[tuple[str, ...], frozenset[str], bool]:
    """Give name and options of a command, and whether a value comes first behind its name."""
    words = command.split()
    path = path_of(words)
    behind = words[len(path) : len(path) + 1]
    return path, options_of(words), any(not word.startswith(("-", "[")) for word in behind)


def without_a_reason() -> Sequence[tuple[str, str]]:
    """Give page and command of those that are neither run nor named with a reason."""
    runs = Runs(run_by_a_test())
    told = set(not_run())
    return [
        (page, command)
        for page, command in commands_of_pages()
        if not runs.has(command) and command not in told
    ]
