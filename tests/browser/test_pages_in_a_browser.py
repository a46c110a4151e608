"""Every page in a browser: the API's numbers, both widths and themes, findings of axe, keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from pages.wording import Number, interval_said, value_said
from tests.browser.page_kit import WIDTHS, opened, png_saved_by, serious_findings
from web.page_list import PAGES
from web.page_shape import View

pytestmark = [pytest.mark.browser, pytest.mark.release]

SPAN: Final = "?span=day"
TABLE_ROWS: Final = 60
MOST_STOPS: Final = 12
"""From the skip link through the controls to the first drawing; a date has a stop for each part."""
SCREENSHOTS: Final = "POINTILLIST_SCREENSHOTS"
"""Names a folder for pictures of all pages."""


@pytest.mark.parametrize("page_name", [page.name for page in PAGES])
def test_page_shows_the_numbers_of_the_api(browser: Browser, site: str, page_name: str) -> None:
    described = next(page for page in PAGES if page.name == page_name)
    with opened(browser) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{site}/{page_name}{SPAN}")
        assert page.title() == f"{described.title} · Pointillist"
        expect(page.locator("main .lead p")).to_have_text(described.question)
        shown = 0
        for view in described.views:
            answer = page.request.get(f"{site}/api/v1/pages/{page_name}/{view.name}{SPAN}").json()
            shown += _compare(page, view, answer)
        assert shown > 0
        assert [url for url in asked if not url.startswith(site)] == []
        _fits(page, f"{page_name}-1280-light")
        assert serious_findings(page) == []


def test_pages_are_readable_on_a_telephone_in_the_dark(browser: Browser, site: str) -> None:
    """Look for findings on pages that have every kind of drawing; the bench does on all."""
    with opened(browser, 390, "dark") as page:
        for described in PAGES:
            page.goto(f"{site}/{described.name}{SPAN}")
            _fits(page, f"{described.name}-390-dark")
            if described.name in {"fleet", "kernels"}:
                assert serious_findings(page) == []


def _fits(page: Page, name: str) -> None:
    """Look for what is wider than the screen, tables open or not."""
    if folder := os.environ.get(SCREENSHOTS):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
    width = page.evaluate("innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def _compare(page: Page, view: View, answer: dict[str, Any]) -> int:
    """Compare a panel with its answer; give the rows that it shows."""
    panel = page.locator(f"#{view.name}")
    words = panel.locator(".words").inner_text()
    assert words.replace("\u00a0", " ") == answer["words"]
    rows = answer["rows"][:TABLE_ROWS]
    cells = panel.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert len(cells) == len(rows)
    at = 0
    for column in view.columns:
        if column.unit is None:
            at += 1
            continue
        numbers = [Number(**row[column.name]) for row in rows]
        if cells and at == len(cells[0]) and all(number.value is None for number in numbers):
            continue  # a column without numbers is not shown
        units = column.units(pd.DataFrame(rows))
        signed = column.signed
        said = [value_said(*pair, signed=signed) for pair in zip(numbers, units, strict=True)]
        ends = [interval_said(*pair, signed=signed) for pair in zip(numbers, units, strict=True)]
        assert [row[at] for row in cells] == said
        assert [row[at + 1] for row in cells] == ends
        at += 2
    return len(cells)


def test_theme_of_the_other_kind_has_enough_contrast_too(browser: Browser, site: str) -> None:
    for width, theme in ((1280, "dark"), (390, "light")):
        with opened(browser, width, theme) as page:
            page.goto(f"{site}/causes{SPAN}")
            assert serious_findings(page) == []


def test_numbers_are_reached_and_left_by_keys(browser: Browser, site: str) -> None:
    with opened(browser) as page:
        page.goto(f"{site}/causes{SPAN}")
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        chart = page.locator("#table [data-chart]")
        for _ in range(MOST_STOPS):
            page.keyboard.press("Tab")
            if chart.evaluate("element => element === document.activeElement"):
                break
        expect(chart).to_be_focused()
        tip = page.locator("[data-tip]")
        page.keyboard.press("ArrowDown")
        expect(tip).to_contain_text("95 % interval")
        first = tip.inner_text()
        page.keyboard.press("End")
        assert tip.inner_text() != first
        expect(tip).to_contain_text("mostly noise")
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()


def test_pointing_says_how_a_number_was_made(browser: Browser, site: str) -> None:
    for width in WIDTHS:
        with opened(browser, width) as page:
            page.goto(f"{site}/causes{SPAN}")
            drawing = page.locator(f"#table .drawing.{'wide' if width == 1280 else 'narrow'}")
            drawing.locator(".mark").first.hover()
            tip = page.locator("[data-tip]")
            expect(tip).to_contain_text("standard error")
            expect(tip).to_contain_text("hosts, as hosts told them")


def test_choice_of_theme_stays(browser: Browser, site: str) -> None:
    with opened(browser) as page:
        page.goto(f"{site}/privacy")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Switch to the dark theme").click()
        page.goto(f"{site}/pipeline")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_choice_stands_in_the_address(browser: Browser, site: str) -> None:
    with opened(browser) as page:
        page.goto(f"{site}/kernels{SPAN}")
        page.get_by_role("combobox", name="By").select_option("launch_share")
        page.wait_for_url("**measure=launch_share**")
        assert "span=day" in page.url


@pytest.mark.parametrize("width", WIDTHS)
def test_every_drawing_is_saved_as_a_picture(browser: Browser, site: str, width: int) -> None:
    saved = 0
    with opened(browser, width) as page:
        for described in PAGES:
            page.goto(f"{site}/{described.name}{SPAN}")
            for button in page.locator("[data-png]").all():
                assert png_saved_by(page, button)
                saved += 1
    assert saved > len(PAGES)


def test_form_works_without_a_script(browser: Browser, site: str) -> None:
    with opened(browser, java_script_enabled=False) as page:
        page.goto(f"{site}/fleet{SPAN}&measure=launch_share")
        page.get_by_label("Series").select_option("hour")
        page.get_by_role("button", name="Show").click()
        for chosen in ("series=hour", "span=day", "measure=launch_share"):
            assert chosen in page.url
        expect(page.locator("#mix .note")).to_contain_text("Series hour")


def test_chosen_day_stands_in_the_address_without_empty_fields(browser: Browser, site: str) -> None:
    with opened(browser) as page:
        page.goto(f"{site}/fleet{SPAN}")
        day = page.get_by_label("Before")
        last = day.get_attribute("max")
        assert last
        day.fill(last)
        page.wait_for_url(f"**until={last}**")
        assert "=&" not in f"{page.url}&"
        expect(page.get_by_label("Before")).to_have_value(last)
