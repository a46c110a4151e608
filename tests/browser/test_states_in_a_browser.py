"""What a browser shows of a store that is empty, stale or hostile, of a dead server, by role."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.page_kit import opened, serious_findings
from tests.browser.server_kit import command, served, wait_until_read
from tests.web_kit import BASIC_USER, fill
from web.access_tokens import new_token, read_tokens, write_tokens
from web.page_list import PAGES
from web.page_shape import Role
from web.viewers import SeriesOwners

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE: Final = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'&{{7*7}}"
NEWS_MS: Final = 6_000
"""A page asks for news every five seconds."""


def test_empty_store_is_said_and_filled_before_the_eyes(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "releases") as address, opened(browser) as page:
        page.clock.install()
        page.goto(f"{address}/fleet")
        expect(page.locator(".notice.empty")).to_contain_text("There is no store")
        assert page.locator(".panel").count() == 0
        assert serious_findings(page) == []
        page.clock.run_for(NEWS_MS)
        fill(tmp_path)
        wait_until_read(address)
        _hear_news(page)
        expect(page.locator("#mix h2")).to_have_text("Now")
        expect(page.locator(".notice.empty")).to_have_count(0)


def test_stale_store_says_when_its_newest_window_ended(browser: Browser, tmp_path: Path) -> None:
    store = fill(tmp_path, end_s=int(time.time()) - 3_600)
    with served(store) as address, opened(browser, 390, "dark") as page:
        wait_until_read(address)
        page.goto(f"{address}/fleet")
        expect(page.locator(".notice.stale")).to_contain_text("one is expected every 60 s")
        assert serious_findings(page) == []


def test_dead_server_makes_numbers_old_and_takes_none_away(
    browser: Browser, simulated: Path, tmp_path: Path
) -> None:
    with command(simulated, tmp_path) as (address, process), opened(browser) as page:
        wait_until_read(address)
        page.clock.install()
        page.goto(f"{address}/causes")
        before = page.locator("#table").inner_text()
        expect(page.locator("html.away")).to_have_count(0)
        process.kill()
        process.wait()
        _hear_news(page)
        expect(page.locator("html.away")).to_have_count(1)
        said = "getComputedStyle(document.querySelector('footer p'), '::before').content"
        assert "The server does not answer" in page.evaluate(said)
        assert page.locator("#table").inner_text() == before


def _hear_news(page: Page) -> None:
    """Let the page's clock run until it has asked for news."""
    page.clock.run_for(NEWS_MS)


def test_each_role_sees_its_pages_and_series(browser: Browser, tmp_path: Path) -> None:
    store, tokens = fill(tmp_path, "mix", "acme-mix"), tmp_path / "web" / "tokens.json"
    owners = SeriesOwners(fleet=frozenset({"mix"}), operators={"acme": frozenset({"acme-mix"})})
    logins = {
        role: _login(tokens, role, operator)
        for role, operator in ((Role.ANALYST, None), (Role.OPERATOR, "acme"), (Role.AUDITOR, None))
    }
    with served(store, token_file=tokens, owners=owners) as address:
        with opened(browser) as page:
            assert _status(page, f"{address}/fleet") == 401
        for role, login in logins.items():
            with opened(browser, http_credentials=login) as page:
                page.goto(f"{address}/privacy")
                shown = page.locator("nav a").all_inner_texts()
                assert shown == [one.title for one in PAGES if role in one.roles]
                series = page.locator("#budget tbody th").all_inner_texts()
                assert set(series) == ({"mix", "acme-mix"} if role is Role.OPERATOR else {"mix"})
                allowed = 403 if role is Role.AUDITOR else 200
                assert _status(page, f"{address}/fleet") == allowed


def _login(tokens: Path, role: Role, operator: str | None) -> Any:
    token, secret = new_token(role.value, role, int(time.time()) + 3_600, operator)
    write_tokens(tokens, [*(read_tokens(tokens) if tokens.exists() else []), token])
    return {"username": BASIC_USER, "password": secret}


def _status(page: Page, address: str) -> int:
    return page.request.get(address).status


def test_hostile_names_stay_text_on_every_page(browser: Browser, tmp_path: Path) -> None:
    store = fill(tmp_path, HOSTILE)
    for path in store.rglob("*.parquet"):
        _make_hostile(path)
    seen = ""
    with served(store) as address, opened(browser) as page:
        wait_until_read(address)
        for described in PAGES:
            page.goto(f"{address}/{described.name}")
            assert page.locator("main img, main script, [onerror]").count() == 0
            seen += page.locator("main").inner_text()
    assert HOSTILE in seen


_NAMES: Final = {"cell": "gemm", "reason": None, "cause": None, "component": None, "domain": None}


def _make_hostile(path: Path) -> None:
    """Give a file of a store names that a page must not obey."""
    table = pq.read_table(path, partitioning=None)
    for name, part in _NAMES.items():
        if name in table.column_names and pa.types.is_string(table.schema.field(name).type):
            column = table[name]
            hostile: Any = (
                pc.replace_substring(column, part, HOSTILE)
                if part
                else pc.if_else(pc.is_valid(column), HOSTILE, column)
            )
            at = table.column_names.index(name)
            table = table.set_column(at, table.schema.field(name), hostile)
    path.unlink()
    pq.write_table(table, path)
