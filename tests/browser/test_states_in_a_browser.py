"""What a browser shows of a store and a server in every state that they can be in, and by role."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.browser.page_kit import opened, png_saved_by, serious_findings
from tests.browser.server_kit import command, served, wait_until_read
from tests.web_kit import BASIC_USER, fill, make_hostile
from web.access_tokens import SeriesOwners, new_token, read_tokens, write_tokens
from web.page_list import PAGES
from web.page_shape import Role
from web.store_watch import StoreWatch

pytestmark = [pytest.mark.browser, pytest.mark.release]

HOSTILE: Final = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'&{{7*7}}"
NEWS_MS: Final = 6_000
"""A page asks for news every five seconds."""
LOOK_MS: Final = 600
MOST_NEWS: Final = 20
MOST_WAITS: Final = 300


def test_empty_store_is_said_and_filled_before_the_eyes(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "releases") as address, opened(browser) as page:
        page.clock.install()
        page.goto(f"{address}/fleet")
        expect(page.locator(".notice.empty")).to_contain_text("There is no store")
        assert page.locator(".panel").count() == 0
        assert serious_findings(page) == []
        _hear_news(page)
        fill(tmp_path)
        wait_until_read(address, until_filled=True)
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


def test_dead_server_makes_numbers_old_and_its_return_makes_them_new(
    browser: Browser, simulated: Path, tmp_path: Path
) -> None:
    with opened(browser) as page:
        strip = page.locator("[data-strip]")
        with command(simulated, tmp_path) as (address, process):
            wait_until_read(address)
            page.clock.install()
            page.goto(f"{address}/causes")
            before = page.locator("#table").inner_text()
            expect(strip).to_be_hidden()
            process.kill()
            process.wait()
            _hear_news(page)
            expect(strip).to_contain_text("The server does not answer: these numbers are old.")
            expect(page.locator("html.away")).to_have_count(1)
            assert page.locator("#table").inner_text() == before
            assert serious_findings(page) == []
        with command(simulated, tmp_path, address.removeprefix("http://")):
            wait_until_read(address)
            _hear_news(page)
            expect(strip).to_be_hidden()
            expect(page.locator("html.away")).to_have_count(0)
            assert page.locator("#table").inner_text() == before


def test_store_that_vanishes_or_is_damaged_is_said_and_comes_back(
    browser: Browser, tmp_path: Path
) -> None:
    store = fill(tmp_path)
    file = next((store / "series=every-kind").rglob("*.parquet"))
    whole = file.read_bytes()
    with served(store) as address, opened(browser) as page:
        wait_until_read(address)
        page.clock.install()
        page.goto(f"{address}/privacy")
        file.unlink()
        file.write_bytes(b"PAR1 no more")
        page.goto(f"{address}/fleet")
        expect(page.locator(".notice.error")).to_contain_text("The store cannot be read now")
        assert page.locator(".panel").count() == 0
        assert serious_findings(page) == []
        file.unlink()
        file.write_bytes(whole)
        _hear_of(page, "#mix h2", "Now")
        expect(page.locator(".notice.error")).to_have_count(0)
        store.rename(tmp_path / "elsewhere")
        _hear_of(page, ".notice.empty", "There is no store")
        (tmp_path / "elsewhere").rename(store)
        _hear_of(page, "#mix h2", "Now")


def _hear_of(page: Page, place: str, said: str) -> None:
    """Let the page ask for news until it shows something; the store is looked at once a second."""
    for _ in range(MOST_NEWS):
        _hear_news(page)
        page.wait_for_timeout(LOOK_MS)
        if page.locator(place).count():
            break
    expect(page.locator(place)).to_contain_text(said)


def test_store_that_is_read_for_the_first_time_is_said_and_then_shown(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, may_read = fill(tmp_path), Event()
    look = StoreWatch._look

    def waiting(watch: StoreWatch) -> Any:
        return look(watch) if may_read.wait(60) else None

    monkeypatch.setattr(StoreWatch, "_look", waiting)
    with served(store) as address, opened(browser) as page:
        asking = Thread(target=wait_until_read, args=(address,))
        asking.start()
        try:
            page.wait_for_timeout(LOOK_MS)
            page.goto(f"{address}/fleet")
            expect(page.locator(".notice.loading")).to_contain_text("read for the first time")
            assert serious_findings(page) == []
        finally:
            may_read.set()
            asking.join()
        expect(page.locator("#mix h2")).to_have_text("Now", timeout=20_000)


def _hear_news(page: Page) -> None:
    """Let the page's clock run until it has asked for news, and wait for what it hears."""
    heard: list[Request] = []

    def note(request: Request) -> None:
        heard.append(request)

    page.on("requestfinished", note)
    page.on("requestfailed", note)
    page.clock.run_for(NEWS_MS)
    for _ in range(MOST_WAITS):
        if any(request.resource_type == "fetch" for request in heard):
            break
        page.wait_for_timeout(LOOK_MS / 10)
    page.remove_listener("requestfinished", note)
    page.remove_listener("requestfailed", note)


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
    make_hostile(store, HOSTILE)
    seen = ""
    with served(store) as address, opened(browser) as page:
        wait_until_read(address)
        for described in PAGES:
            page.goto(f"{address}/{described.name}")
            assert page.locator("main img, main script, [onerror]").count() == 0
            seen += page.locator("main").inner_text()
            for button in page.locator("[data-png]").all():
                assert png_saved_by(page, button)
    assert HOSTILE in seen
