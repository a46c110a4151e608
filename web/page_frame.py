"""What stands around the panels of a page: links, controls, notices and the foot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlencode

from pages.layout import Control, Notice
from pages.scale import moment_said

from .page_shape import Page
from .page_state import PageState
from .store_reading import StoreReading
from .store_watch import StoreStanding, StoreState
from .viewers import Viewer

_SIMULATED: Final = "These hosts are simulated: no number here is of a real fleet."


def controls(page: Page, state: PageState, reading: StoreReading) -> Iterator[Control]:
    chosen = state.model_dump(mode="json")
    for choice in page.choices:
        options = list(choice.options(reading, state))
        value = "" if chosen[choice.name] is None else str(chosen[choice.name])
        if choice.dates:
            days = (options[0][0], options[-1][0])
            yield Control(choice.name, choice.label, (), value, days)
        elif len(options) > 1:
            if value not in dict(options):
                options.append((value, value))
            yield Control(choice.name, choice.label, options, value)


def links(
    pages: Sequence[Page], viewer: Viewer, state: PageState, here: str | None
) -> list[tuple[str, str, bool]]:
    """Give the pages that a viewer may open; each keeps what is looked at."""
    query = urlencode(state.written())
    return [
        (page.title, f"/{page.name}" + (f"?{query}" if query else ""), page.name == here)
        for page in pages
        if viewer.role in page.roles
    ]


def notices(standing: StoreStanding) -> list[Notice]:
    """Say what must be known before the numbers."""
    found = []
    if standing.simulated:
        played = f" {standing.played}." if standing.played else ""
        found.append(Notice("simulated", f"{_SIMULATED}{played}"))
    if standing.state is not StoreState.WELL:
        found.append(Notice(standing.state.value, standing.detail))
    return found


def status_said(standing: StoreStanding) -> str:
    """Say at a page's foot what it is made of."""
    if not standing.series:
        return "Everything here is made of released numbers; looking costs no privacy budget."
    return (
        f"Newest window until {moment_said(standing.newest_s)} UTC. Everything here is made of "
        "released numbers; looking costs no privacy budget."
    )
