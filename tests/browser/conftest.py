"""One store, one server and one browser for all tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.server_kit import served, wait_until_read
from tests.browser.simulated_store import fill_simulated


@pytest.fixture(scope="package")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_simulated(tmp_path_factory.mktemp("simulated"))


@pytest.fixture(scope="package")
def site(simulated: Path) -> Iterator[str]:
    with served(simulated) as address:
        wait_until_read(address)
        yield address


# Not of the session: while Playwright runs, no other test of this thread may run a loop of asyncio.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()
