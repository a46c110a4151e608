"""Pages of the web application in a browser, over a simulated store: what axe finds on each."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Request, sync_playwright

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from tests.browser.page_kit import WIDTHS, opened, serious_findings
from tests.browser.server_kit import served, wait_until_read
from tests.browser.simulated_store import fill_simulated
from web.page_list import PAGES

_THEMES: Final = ("light", "dark")


def look() -> Part:
    """Open every page in both widths and themes; count pages, looks and serious findings."""
    found: list[str] = []
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        with served(fill_simulated(Path(folder))) as site:
            wait_until_read(site)
            first_bytes = _first_page_bytes(browser, site)
            for width in WIDTHS:
                for theme in _THEMES:
                    with opened(browser, width, theme) as page:
                        for described in PAGES:
                            page.goto(f"{site}/{described.name}?span=day")
                            found += serious_findings(page)
        browser.close()
    looks = len(PAGES) * len(WIDTHS) * len(_THEMES)
    return {"pages": len(PAGES), "looks": looks, "found": found, "first_bytes": first_bytes}


def _first_page_bytes(browser: Browser, site: str) -> int:
    """Count what a browser that knows nothing yet is sent before it shows the first page."""
    requests: list[Request] = []

    def keep(request: Request) -> None:  # Playwright marks handlers, which a method of list refuses
        requests.append(request)

    with opened(browser) as page:
        page.on("requestfinished", keep)
        page.goto(site, wait_until="networkidle")
        sizes = [request.sizes() for request in requests]
    return sum(size["responseHeadersSize"] + size["responseBodySize"] for size in sizes)


def measure(kept: Parts) -> Measured:
    """Look at every page."""
    part = kept.get("pages", look)
    return Measured(
        [
            Figure("axe_serious_findings", len(part["found"]), "findings", 0.0),
            Figure("pages_tested_in_browser", part["pages"], "pages"),
            Figure("first_page_kib", part["first_bytes"] / 1024, "KiB"),
            Figure("page_looks_in_browser", part["looks"], "looks"),
        ]
    )
