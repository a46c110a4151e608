"""Every command of the product on a page is one that it has, and a test runs it or says why not."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec

import pytest

from tests.page_commands import (
    PAGES,
    TESTS,
    every_command_of,
    options_of,
    path_of,
    targets_of,
    unknown_in,
)
from tests.page_runs import (
    RunElsewhere,
    Runs,
    commands_of_pages,
    not_run,
    run_elsewhere,
    typed_in,
    without_a_reason,
)

ROWS = run_elsewhere()


@pytest.mark.parametrize("page", sorted(PAGES))
def test_commands_of_the_page_are_the_products(page: str) -> None:
    unknown = {" ".join(words): unknown_in(words) for words in every_command_of(page)}
    assert {line: found for line, found in unknown.items() if found} == {}


def test_pages_have_the_commands_that_are_looked_for() -> None:
    assert sum(len(every_command_of(page)) for page in PAGES) > 250


def test_a_command_that_is_not_there_is_found() -> None:
    assert unknown_in(["operator", "vouch", "--host"]) == ["--host"]
    assert unknown_in(["agent", "stragglers"]) == ["stragglers"]
    assert unknown_in(["size", "--gpus=3"]) == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_targets_and_modules_that_the_page_names_are_there(page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE), "bench-"}
    assert targets_of(page) <= targets
    modules = set(re.findall(r"python3? -m ((?:scripts|tests|bench)[\w.]*)", text))
    assert [module for module in modules if find_spec(module) is None] == []


def test_every_command_of_a_page_is_run_by_a_test_or_says_why_not() -> None:
    assert without_a_reason() == []


def test_a_command_stands_for_its_like_alone() -> None:
    runs = Runs(["agent history --since 10m", "fleet up /srv/trial"])
    assert runs.has("agent history --since 3d")
    assert runs.has("agent history")
    assert runs.has("fleet up ...")
    assert not runs.has("agent history --since 10m --json")
    assert not runs.has("agent top")
    assert not runs.has("fleet up /srv/trial --until-release")
    assert not runs.has("fleet init")
    assert not Runs(["simulate"]).has("simulate steady")


def test_commands_that_a_test_types_are_read_from_it() -> None:
    source = 'machine.type("agent top", code=1)\nmachine.begin("a " "b")\nmachine.type(name)'
    assert typed_in(ast.parse(source)) == {"agent top", "a b"}


def test_table_names_commands_that_pages_have_and_once() -> None:
    named = [command for row in ROWS for command in row.commands]
    named += not_run()
    assert set(named) <= {command for _, command in commands_of_pages()}
    assert len(named) == len(set(named))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.test))
def test_test_of_the_table_has_its_pages_and_the_words_of_its_commands(row: RunElsewhere) -> None:
    text = (TESTS / row.test).read_text(encoding="utf-8")
    for page in row.pages:
        assert re.search(rf'["/]{re.escape(page)}"', text)
        text += PAGES[page].read_text(encoding="utf-8")  # it reads the page
    for command in row.commands:
        words = command.split()
        missing = [word for word in {path_of(words)[-1], *options_of(words)} if word not in text]
        assert missing == [], command
