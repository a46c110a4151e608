"""Golden files: what others rely on, as it stood when it was written; a plugin of pytest.

Kept are names and types of what scripts, dashboards and queries read. Most files are compared by
`tests/golden/test_golden.py`. `json.txt` has the documents of `--json`: whatever document a command
prints in any test is compared, in that test.

A change on purpose: `make golden ARGS="FILES OF TESTS"` writes what `tests/golden` and these tests
meet; read the difference, commit it, name it in CHANGELOG.md. In `json.txt` `?` is a key that is
not always there; one that has gone is taken out by hand. `*` stands for keys that are data, as the
names of series; it is written by hand too, in place of one of them.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from pointillist.cli import output, root

FOLDER: Final = Path(__file__).with_name("golden")
WRITES: Final = "POINTILLIST_GOLDEN" in os.environ
_DOCUMENTS: Final = "json.txt"
_FREE: Final = {"agent top", "agent history"}
"""What their documents hold is not settled."""
_ON_PURPOSE: Final = "On purpose? `make golden` writes it; name the change in CHANGELOG.md"
_ERROR: Final = {"error", "hint", "exit_code"}
_TYPES: Final = {
    bool: "bool", int: "int", float: "float", str: "text", list: "list", dict: "object",
    type(None): "null",
}  # fmt: skip


def compare(name: str, lines: Iterable[str]) -> None:
    """Compare lines with a golden file, or write it where that was asked for."""
    file, found = FOLDER / name, list(lines)
    if WRITES:
        file.write_text("\n".join(found) + "\n", encoding="utf-8")
    kept = file.read_text(encoding="utf-8").splitlines()
    differing = difflib.unified_diff(kept, found, f"golden/{name}", "now", lineterm="", n=1)
    if told := "\n".join(differing):
        pytest.fail(f"{told}\n{_ON_PURPOSE}", pytrace=False)


@dataclass(slots=True)
class Shape:
    """A node of documents: its types, how many objects were there, its children by key.

    seen, objects   how many times it was there, and was an object, in this session
    """

    types: set[str] = field(default_factory=set)
    seen: int = 0
    objects: int = 0
    children: dict[str, Shape] = field(default_factory=dict)
    optional: bool = False

    def take(self, value: Any) -> None:
        self.seen += 1
        self.types.add(_TYPES[type(value)])
        self.objects += isinstance(value, dict)
        for key, below in _below(value):
            self.children.setdefault("*" if "*" in self.children else key, Shape()).take(below)

    def settle(self) -> None:
        """Let go of keys that were always there and are not; say which are not always there."""
        for key, child in list(self.children.items()):
            if self.objects and key not in {"[]", "*"} and not child.optional:
                child.optional = child.seen < self.objects
                if not child.seen:
                    del self.children[key]
            child.settle()

    def faults(self, value: Any, where: str) -> Iterator[str]:
        found, known = _TYPES[type(value)], self.types - {"null"}
        known |= {"int"} if "float" in known else set()
        if known and found not in {*known, "null"}:
            yield f"{where}: expected {' or '.join(sorted(self.types))}, got {found}"
        if not self.children:  # nothing is known of what it holds
            return
        if isinstance(value, dict) and "*" not in self.children:
            kept = {key for key, child in self.children.items() if not child.optional} - {"[]"}
            yield from (f"{where}.{key}: it is gone" for key in sorted(kept - value.keys()))
        for key, below in _below(value):
            child = self.children.get("*") or self.children.get(key)
            if child is None:
                yield f"{where}.{key}: it is new"
            else:
                yield from child.faults(below, f"{where}.{key}")

    def lines(self, name: str, depth: int) -> Iterator[str]:
        mark = "?" if self.optional else ""
        yield f"{'  ' * depth}{name}{mark}: {' '.join(sorted(self.types))}".rstrip()
        for key, child in sorted(self.children.items()):
            yield from child.lines(key, depth + 1)


def _below(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from (("[]", one) for one in value)


@cache
def documents() -> dict[str, Shape]:
    file = FOLDER / _DOCUMENTS
    above: list[Shape] = [Shape()]
    for line in file.read_text(encoding="utf-8").splitlines():
        name, _, types = line.strip().rpartition(":")
        shape = Shape(set(types.split()), optional=name.endswith("?"))
        depth = (len(line) - len(line.lstrip())) // 2
        del above[depth + 1 :]
        above[-1].children[name.removesuffix("?")] = shape
        above.append(shape)
    return above[0].children


def tree(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command.load() if isinstance(command, root.LazyGroup) else command
    yield path, command
    for name, one in sorted(getattr(command, "commands", {}).items()):
        yield from tree(one, *path, name)


@cache
def commands() -> Mapping[tuple[str, ...], Any]:
    """The whole command tree, loaded: path -> command."""
    groups = (tree(root.LazyGroup(group), group.name) for group in root.GROUPS)
    return {path: command for group in groups for path, command in group}


@cache
def _names() -> Mapping[Any, str]:
    return {
        inspect.unwrap(command.callback): " ".join(path)
        for path, command in commands().items()
        if command.callback is not None
    }


_found: list[str] = []


def noted(words: Sequence[str], document: str) -> str:
    """Compare what a command of another process printed, given by its words; give it back."""
    at = max((n for n in range(len(words) + 1) if tuple(words[:n]) in commands()), default=0)
    compare_document(" ".join(words[:at]), document)
    return document


def compare_document(name: str, document: str) -> None:
    """Compare a document with what is kept by a name, when the test has ended."""
    value = json.loads(document)
    if name in {"", *_FREE} or (isinstance(value, dict) and value.keys() == _ERROR):
        return
    if WRITES:
        documents().setdefault(name, Shape()).take(value)
    else:
        _found.extend(documents().get(name, Shape({"none"})).faults(value, name))


_print = output._json_for_terminals


def _noting(document: str) -> str:
    context = typer._click.globals.get_current_context(silent=True)
    if context is not None and context.command.callback is not None:
        compare_document(_names().get(inspect.unwrap(context.command.callback), ""), document)
    return _print(document)


def pytest_configure() -> None:
    output._json_for_terminals = _noting


def pytest_unconfigure() -> None:
    output._json_for_terminals = _print


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    yield
    told = list(dict.fromkeys(_found))
    _found.clear()
    if told:
        pytest.fail("\n".join([*told, _ON_PURPOSE]), pytrace=False)


def pytest_sessionfinish() -> None:
    if not WRITES:
        return
    for shape in documents().values():
        shape.settle()
    lines = [line for name, one in sorted(documents().items()) for line in one.lines(name, 0)]
    (FOLDER / _DOCUMENTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
