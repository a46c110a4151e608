"""Pages in a browser that fail a test where anything goes wrong on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Page

WIDTHS: Final = {1280: 900, 390: 844}
"""Width of a screen -> its height, pixels."""
MOST_OF_AN_EMPTY_PNG: Final = 4_000
"""Bytes: one colour packs to nothing."""
_SERIOUS: Final = {"serious", "critical"}


@contextmanager
def opened(
    browser: Browser, width: int = 1280, theme: Any = "light", **more: Any
) -> Iterator[Page]:
    """Open an empty page; fail where it opens a dialog or its script an error.

    more    of `Browser.new_context`
    """
    screen: Any = {"width": width, "height": WIDTHS[width]}
    context = browser.new_context(viewport=screen, color_scheme=theme, **more)
    page = context.new_page()
    wrong: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        wrong.append(dialog.message)
        dialog.dismiss()

    def note(line: ConsoleMessage) -> None:
        # What the server did not answer or refused is for the test to judge.
        if line.type == "error" and "Failed to load resource" not in line.text:
            wrong.append(line.text)

    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", dismiss)
    page.on("console", note)
    try:
        yield page
        assert wrong == []
    finally:
        context.close()


def serious_findings(page: Page) -> list[str]:
    """Give each rule that is broken seriously, with the first element that breaks it."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{rule['id']}: {rule['nodes'][0]['html']} {rule['nodes'][0]['failureSummary']}"
        for rule in found
        if rule["impact"] in _SERIOUS
    ]


def png_saved_by(page: Page, button: Locator) -> bool:
    """Save a drawing as a picture; say whether it is one with something in it."""
    with page.expect_download() as saved:
        button.click()
    picture = saved.value.path().read_bytes()
    return picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) > MOST_OF_AN_EMPTY_PNG
