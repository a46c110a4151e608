"""Every command of the product on a page of the documentation is one that it has."""

from __future__ import annotations

import re

import pytest

from tests.page_commands import PAGES, RUN_BY, TESTS, every_command_of, unknown_in


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


@pytest.mark.parametrize(("page", "test"), sorted(RUN_BY.items()))
def test_page_whose_commands_are_run_is_named_by_that_test(page: str, test: str) -> None:
    assert re.search(rf'["/]{re.escape(page)}"', (TESTS / test).read_text(encoding="utf-8"))
