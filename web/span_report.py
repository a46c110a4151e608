"""A report to send round: pages of a span as one file, with what an analyst may see."""

from __future__ import annotations

import calendar
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from pages.layout import Notice, PageReport, ReportPart, rendered_report
from pages.svg import moment_said

from .access_tokens import SeriesOwners, Viewer
from .page_answers import PageAnswers
from .page_list import PAGES
from .page_shape import Page, Role
from .store_reading import PageState
from .store_watch import FAILURES, StoreState, StoreWatch, unreadable
from .view_panel import notices, status_said

_PAGES: Final = ("fleet", "applications", "causes", "privacy")
_READER: Final = Viewer("report", Role.ANALYST)
"""Whoever it is sent to: no series of a single operator is in it."""


class ReportRefused(Exception):
    """There is nothing to report of; says what was expected."""


def span_report(store: Path, rollups: Path, state: PageState, owners: SeriesOwners) -> bytes:
    """Make the report of a store, UTF-8. Raises ReportRefused."""
    with closing(StoreWatch(store, rollups)) as watch:
        return _report(PageAnswers(watch, owners, PAGES), state)


def _report(answers: PageAnswers, state: PageState) -> bytes:
    standing = answers.watch.standing()
    if standing.state is StoreState.EMPTY:
        raise ReportRefused(
            f"expected a folder of releases, got no store or an empty one: {answers.watch.folder}"
        )
    if not standing.readable:
        raise ReportRefused(standing.detail)
    if not answers.visible(standing, _READER):
        raise ReportRefused(
            "expected a series of fleet tasks, and no release in the store says that it is of one: "
            "name it with --fleet-series"
        )

    def part(page: Page) -> ReportPart:
        panels = [
            replace(panel, name=f"{page.name}-{panel.name}", files=())
            for panel in answers.panels(page, state, _READER)
        ]
        return ReportPart(page.name, page.title, page.question, panels)

    try:
        parts = [part(page) for page in PAGES if page.name in _PAGES]
    except FAILURES as error:
        raise ReportRefused(unreadable(error)) from error
    until_s = standing.newest_s
    if state.until is not None:
        until_s = float(calendar.timegm(state.until.timetuple()))
    told: list[Notice] = [n for n in notices(standing) if n.kind != StoreState.STALE.value]
    report = PageReport(
        f"{_SPANS[state.span]} until {moment_said(until_s)[:10]}",
        f"What the fleet did, up to {moment_said(until_s)} UTC. Every number has its 95 % "
        "interval: point at it, or go there with the arrow keys.",
        parts,
        told,
        status_said(standing),
    )
    return rendered_report(report).encode()


_SPANS: Final = {"day": "The day", "week": "The week", "eight_weeks": "Eight weeks"}
