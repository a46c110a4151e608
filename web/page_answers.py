"""Answers by page and state: made once for each generation of the store, then handed out packed."""

from __future__ import annotations

import gzip
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Final
from urllib.parse import urlencode

import pandas as pd

from pages.layout import Control, Notice, Panel, Screen, TableCell, rendered
from pages.scale import moment_said
from pages.sparkline import sparkline
from pages.trend_chart import TrendLine
from pages.wording import ABSENT, interval_said, plain, value_said

from .kept_values import KeptValues, MadeBehind
from .page_shape import FrameColumn, Page, View, numbers_of
from .page_state import PageState
from .store_reading import StoreReading
from .store_watch import FAILURES, StoreStanding, StoreState, StoreWatch, unreadable
from .view_files import as_csv, as_json, as_parquet, json_cell, said
from .viewers import SeriesOwners, Viewer

_MOST_BYTES: Final = 128 << 20
_MOST_SHOWN: Final = 10_000
_OLD_S: Final = 60.0
"""How long after a newer store was seen a page of an older one may still be handed out."""
_MOST_ROWS: Final = 60
"""Of a table on a page; files have all."""

_SIMULATED: Final = "These hosts are simulated: no number here is of a real fleet."


@dataclass(frozen=True, slots=True)
class PackedAnswer:
    """Bytes of an answer, plain and by gzip, and the tag that they are asked for by again."""

    body: bytes
    packed: bytes
    tag: str

    def weight(self) -> int:
        """Bytes that it takes."""
        return len(self.body) + len(self.packed)

    @staticmethod
    def of(body: bytes) -> PackedAnswer:
        """Pack bytes."""
        return PackedAnswer(
            body, gzip.compress(body, 6, mtime=0), f'W/"{sha256(body).hexdigest()[:24]}"'
        )


def frame_bytes(frame: pd.DataFrame) -> int:
    """Bytes that a frame takes; names are shared, so they are not gone through."""
    return int(frame.memory_usage(deep=False).sum())


class StoreAway(Exception):
    """The store cannot be read now; the message says why, for whoever looks."""


class PageAnswers:
    """Pages and views of one store, as each viewer may see them.

    behind   a page of an older store is handed out while the newest is drawn behind; False: whoever
             asks waits for the newest
    """

    def __init__(
        self,
        watch: StoreWatch,
        owners: SeriesOwners,
        pages: Sequence[Page],
        *,
        behind: bool = False,
    ) -> None:
        self.watch = watch
        self.pages = pages
        self._owners = owners
        self._answers = KeptValues[PackedAnswer](_MOST_BYTES, PackedAnswer.weight)
        self._frames = KeptValues[pd.DataFrame](_MOST_BYTES, frame_bytes)
        self._whole = KeptValues[pd.DataFrame](_MOST_BYTES, frame_bytes)
        self._behind = MadeBehind() if behind else None
        self._drawn: dict[Hashable, StoreStanding] = {}

    def page(self, page: Page, state: PageState, viewer: Viewer) -> PackedAnswer:
        """Give the newest page as HTML, drawing it where it is not drawn yet."""
        standing = self.watch.standing()
        series = self.visible(standing, viewer)
        shown = (page.name, state, viewer.role, series)
        try:
            answer = self._answers.get(
                (shown, standing),
                lambda: PackedAnswer.of(self._html(page, state, viewer, standing, series)),
            )
        except FAILURES as error:
            return PackedAnswer.of(
                self._html(page, state, viewer, _broken(standing, error), series)
            )
        self._note(shown, standing)
        return answer

    def ready_page(self, page: Page, state: PageState, viewer: Viewer) -> PackedAnswer | None:
        """Give a page that is drawn already, and wait for nothing; None where none may be shown.

        One of an older store is drawn anew behind, for whoever asks next.
        """
        standing = self.watch.standing()
        shown = (page.name, state, viewer.role, self.visible(standing, viewer))
        drawn = self._drawn.get(shown)
        if drawn is None:
            return None
        # Found first: what is drawn behind takes its place.
        answer = self._answers.find((shown, drawn))
        if answer is not None and drawn != standing:
            if self._behind is None or not self._may_follow(drawn, standing):
                return None
            self._behind.ask(shown, lambda: self.page(page, state, viewer))
        return answer

    def close(self) -> None:
        """Wait for what is drawn behind, and draw nothing more there."""
        if self._behind is not None:
            self._behind.close()
            self._behind = None

    def _may_follow(self, drawn: StoreStanding, standing: StoreStanding) -> bool:
        """Whether a page of an older store may be shown: for a while, and not over an error."""
        gone_s = self.watch.gone_s(drawn.generation)
        return (
            drawn.state is standing.state
            and gone_s is not None
            and time.monotonic() - gone_s < _OLD_S
        )

    def _note(self, shown: Hashable, standing: StoreStanding) -> None:
        """Note of which store a page is drawn; what was drawn before goes."""
        if len(self._drawn) > _MOST_SHOWN:
            self._drawn.clear()
        before = self._drawn.get(shown)
        self._drawn[shown] = standing
        if before is not None and before != standing:
            self._answers.drop((shown, before))

    def file(
        self, page: Page, view: View, state: PageState, viewer: Viewer, kind: str
    ) -> PackedAnswer:
        """Give a view as json, csv or parquet.

        Raises      StoreAway
        """
        standing = self.watch.standing()
        if standing.state in {StoreState.BROKEN, StoreState.LOADING}:
            raise StoreAway(standing.detail)
        series = self.visible(standing, viewer)
        write = {
            "json": partial(as_json, page, view),
            "csv": partial(as_csv, view),
            "parquet": partial(as_parquet, view),
        }[kind]
        key = (kind, page.name, view.name, state, series, standing.generation)
        try:
            return self._answers.get(
                key,
                lambda: PackedAnswer.of(
                    write(_frame(view, state, self._reading(standing, series)))
                ),
            )
        except FAILURES as error:
            raise StoreAway(_broken(standing, error).detail) from error

    def visible(self, standing: StoreStanding, viewer: Viewer) -> frozenset[str] | None:
        """Give the series that a viewer may see; None: all."""
        return self._owners.visible(viewer, standing.series)

    def panels(self, page: Page, state: PageState, viewer: Viewer) -> list[Panel]:
        """Give what is drawn of a page, for another frame than the application's.

        Raises      one of FAILURES
        """
        standing = self.watch.standing()
        reading = self._reading(standing, self.visible(standing, viewer))
        return [] if reading is None else [_panel(page, v, state, reading) for v in page.views]

    def _reading(
        self, standing: StoreStanding, series: frozenset[str] | None
    ) -> StoreReading | None:
        """Give what can be read now; None where the store is not readable."""
        if standing.state not in {StoreState.WELL, StoreState.STALE}:
            return None
        fleet = self.watch.fleet()
        return StoreReading(
            fleet, self.watch.folder, series, standing.newest_s, standing.covered_s,
            {one.name: one.epsilon for one in standing.series},
            lambda key, make: self._frames.get((standing.generation, *key), make),
            lambda key, make: self._frames.get((fleet.source, *key), make),
            lambda key, make: self._whole.get((fleet.source, *key), make),
        )  # fmt: skip

    def _html(
        self,
        page: Page,
        state: PageState,
        viewer: Viewer,
        standing: StoreStanding,
        series: frozenset[str] | None,
    ) -> bytes:
        reading = self._reading(standing, series)
        controls = [] if reading is None else list(_controls(page, state, reading))
        shown = {control.name for control in controls}
        kept = list(state.written().items())
        screen = Screen(
            title=page.title,
            question=page.question,
            links=links(self.pages, viewer, state, page.name),
            panels=[]
            if reading is None
            else [
                replace(_panel(page, v, state, reading), action=v.action, query=kept)
                for v in page.views
            ],
            notices=notices(standing),
            controls=controls,
            hidden=[(name, value) for name, value in kept if name not in shown],
            status=status_said(standing),
            live=True,
            refresh_s=5 if standing.state is StoreState.LOADING else None,
        )
        return rendered(screen).encode()


def _controls(page: Page, state: PageState, reading: StoreReading) -> Iterator[Control]:
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


def _broken(standing: StoreStanding, error: Exception) -> StoreStanding:
    return replace(standing, state=StoreState.BROKEN, detail=unreadable(error))


def _frame(view: View, state: PageState, reading: StoreReading | None) -> pd.DataFrame:
    """Make a view's frame; one without a row has the view's columns all the same."""
    found = None if reading is None else view.frame(reading, state)
    if found is None or found.empty:
        return pd.DataFrame(columns=[column.name for column in view.columns])
    return found


def _panel(page: Page, view: View, state: PageState, reading: StoreReading) -> Panel:
    frame = _frame(view, state, reading)
    words = said(view, frame)
    if frame.empty:
        return Panel(view.name, view.title, words)
    query = urlencode(state.written())
    base = f"/api/v1/pages/{page.name}/{view.name}"
    ends = (("JSON", ""), ("CSV", ".csv"), ("Parquet", ".parquet"))
    hidden = len(frame) - _MOST_ROWS
    drawing = view.chart(frame) if view.chart else None
    lines = view.ways(reading, state) if view.ways else []
    ways = [_ways(frame, view, lines)] if lines else []
    return Panel(
        view.name, view.title, words,
        drawing=drawing,
        note=view.note(frame) if view.note else "",
        more=f"{hidden:,} more rows are in the files." if hidden > 0 else "",
        heads=[
            *(head for column in view.columns for head in _heads(column)),
            *((view.ways_head, False) for _ in ways),
        ],
        rows=_rows(frame.head(_MOST_ROWS), view, ways),
        files=[(text, f"{base}{end}" + (f"?{query}" if query else "")) for text, end in ends],
        unfolded=not drawing,
    )  # fmt: skip


def _heads(column: FrameColumn) -> list[tuple[str, bool]]:
    if column.unit is None:
        return [(column.head, column.number)]
    return [(column.head, True), ("95 % interval", True)]


def _ways(frame: pd.DataFrame, view: View, lines: Sequence[TrendLine]) -> list[TableCell]:
    """Draw the way of each row that has one."""
    drawn = {line.name: sparkline(line.name, line.points) for line in lines}
    names = map(plain, frame[view.columns[0].name].head(_MOST_ROWS))
    return [TableCell(drawn.get(name) or ABSENT) for name in names]


def _rows(
    frame: pd.DataFrame, view: View, more: Sequence[Sequence[TableCell]]
) -> list[list[TableCell]]:
    columns = [part for column in view.columns for part in _cells(frame, column)]
    return [list(row) for row in zip(*columns, *more, strict=True)]


def _cells(frame: pd.DataFrame, column: FrameColumn) -> list[list[TableCell]]:
    """Give the cells of one or two columns of a table."""
    if column.unit is None:
        values = frame[column.name]
        return [[TableCell(_written(value, column), number=column.number) for value in values]]
    numbers, unit, signed = numbers_of(frame, column.prefix), column.unit, column.signed
    return [
        [
            TableCell(
                value_said(number, unit, signed=signed), number=True,
                unsure=not (number.known and number.told),
            )
            for number in numbers
        ],
        [TableCell(interval_said(number, unit, signed=signed), number=True) for number in numbers],
    ]  # fmt: skip


def _written(value: object, column: FrameColumn) -> str:
    cell = json_cell(value)
    if cell is not None and isinstance(value, datetime):
        return moment_said(pd.Timestamp(value).timestamp())
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return f"{cell:,.3g}" if isinstance(cell, float) else f"{cell:,}"
    return ABSENT if cell is None else column.say(cell)
