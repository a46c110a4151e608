"""Answers by page and state: made once for each generation of the store, then handed out packed."""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Final
from urllib.parse import urlencode

import pandas as pd

from pages.layout import Control, Notice, Panel, Screen, TableCell, rendered
from pages.scale import moment_said
from pages.wording import ABSENT, interval_said, value_said

from .page_shape import FrameColumn, Page, View, number_of, rows_of
from .page_state import PageState
from .store_reading import StoreReading
from .store_watch import FAILURES, StoreStanding, StoreState, StoreWatch, unreadable
from .view_files import as_csv, as_json, as_parquet, json_cell, said
from .viewers import SeriesOwners, Viewer

_MOST_BYTES: Final = 64 << 20
_MOST_ROWS: Final = 60
"""Of a table on a page; files have all."""

_SIMULATED: Final = "These hosts are simulated: no number here is of a real fleet."


@dataclass(frozen=True, slots=True)
class PackedAnswer:
    """Bytes of an answer, plain and by gzip, and the tag that they are asked for by again."""

    body: bytes
    packed: bytes
    tag: str

    @staticmethod
    def of(body: bytes) -> PackedAnswer:
        """Pack bytes."""
        return PackedAnswer(
            body, gzip.compress(body, 6, mtime=0), f'W/"{sha256(body).hexdigest()[:24]}"'
        )


class StoreAway(Exception):
    """The store cannot be read now; the message says why, for whoever looks."""


class AnswerCache:
    """Answers by key, the least used dropped beyond so many bytes; each is made by one thread."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._bytes = most_bytes, 0
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, PackedAnswer] = OrderedDict()
        self._making: dict[Hashable, Lock] = {}

    def get(self, key: Hashable, make: Callable[[], bytes]) -> PackedAnswer:
        """Give the answer of a key, making it where it is not kept."""
        if (kept := self._find(key)) is not None:
            return kept
        with self._alone(key):
            if (kept := self._find(key)) is not None:
                return kept
            answer = PackedAnswer.of(make())
            self._keep(key, answer)
            return answer

    @contextmanager
    def _alone(self, key: Hashable) -> Iterator[None]:
        with self._lock:
            lock = self._making.setdefault(key, Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._making.pop(key, None)

    def _find(self, key: Hashable) -> PackedAnswer | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: Hashable, answer: PackedAnswer) -> None:
        with self._lock:
            self._kept[key] = answer
            self._bytes += len(answer.body) + len(answer.packed)
            while self._bytes > self._most and len(self._kept) > 1:
                dropped = self._kept.popitem(last=False)[1]
                self._bytes -= len(dropped.body) + len(dropped.packed)


class PageAnswers:
    """Pages and views of one store, as each viewer may see them."""

    def __init__(self, watch: StoreWatch, owners: SeriesOwners, pages: Sequence[Page]) -> None:
        self.watch = watch
        self.pages = pages
        self._owners = owners
        self._cache = AnswerCache()

    def page(self, page: Page, state: PageState, viewer: Viewer) -> PackedAnswer:
        """Give a page as HTML."""
        standing = self.watch.standing()
        series = self.visible(standing, viewer)
        key = ("page", page.name, state, viewer.role, series, standing)
        try:
            return self._cache.get(key, lambda: self._html(page, state, viewer, standing, series))
        except FAILURES as error:
            return PackedAnswer.of(
                self._html(page, state, viewer, _broken(standing, error), series)
            )

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
            return self._cache.get(
                key, lambda: write(_frame(view, state, self._reading(standing, series)))
            )
        except FAILURES as error:
            raise StoreAway(_broken(standing, error).detail) from error

    def visible(self, standing: StoreStanding, viewer: Viewer) -> frozenset[str] | None:
        """Give the series that a viewer may see; None: all."""
        return self._owners.visible(viewer, standing.series)

    def _reading(
        self, standing: StoreStanding, series: frozenset[str] | None
    ) -> StoreReading | None:
        """Give what can be read now; None where the store is not readable."""
        if standing.state not in {StoreState.WELL, StoreState.STALE}:
            return None
        fleet = self.watch.fleet()
        newest_s, covered_s = standing.newest_s, standing.covered_s
        return StoreReading(fleet, self.watch.folder, series, newest_s, covered_s)

    def _html(
        self,
        page: Page,
        state: PageState,
        viewer: Viewer,
        standing: StoreStanding,
        series: frozenset[str] | None,
    ) -> bytes:
        reading = self._reading(standing, series)
        shown = {choice.name for choice in page.choices}
        screen = Screen(
            title=page.title,
            question=page.question,
            links=links(self.pages, viewer, state, page.name),
            panels=[] if reading is None else [_panel(page, v, state, reading) for v in page.views],
            notices=notices(standing),
            controls=[] if reading is None else list(_controls(page, state, reading)),
            hidden=[(name, value) for name, value in state.written().items() if name not in shown],
            status=status_said(standing),
            live="/api/v1/store",
            refresh_s=5 if standing.state is StoreState.LOADING else None,
        )
        return rendered(screen).encode()


def _controls(page: Page, state: PageState, reading: StoreReading) -> Iterator[Control]:
    chosen = state.model_dump(mode="json")
    for choice in page.choices:
        options = choice.options(reading)
        if len(options) > 1:
            yield Control(choice.name, choice.label, options, str(chosen[choice.name]))


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
        found.append(Notice("simulated", _SIMULATED))
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
    if reading is None:
        return pd.DataFrame(columns=[column.name for column in view.columns])
    return view.frame(reading, state)


def _panel(page: Page, view: View, state: PageState, reading: StoreReading) -> Panel:
    frame = _frame(view, state, reading)
    words = said(view, frame)
    if frame.empty:
        return Panel(view.name, view.title, words)
    query = urlencode(state.written())
    base = f"/api/v1/pages/{page.name}/{view.name}"
    ends = (("JSON", ""), ("CSV", ".csv"), ("Parquet", ".parquet"))
    hidden = len(frame) - _MOST_ROWS
    return Panel(
        view.name, view.title, words,
        drawing=view.chart(frame) if view.chart else None,
        note=view.note(frame) if view.note else "",
        more=f"{hidden:,} more rows are in the files." if hidden > 0 else "",
        heads=[head for column in view.columns for head in _heads(column)],
        rows=[
            [cell for column in view.columns for cell in _cells(row, column)]
            for row in rows_of(frame.head(_MOST_ROWS))
        ],
        files=[(text, f"{base}{end}" + (f"?{query}" if query else "")) for text, end in ends],
        unfolded=view.chart is None,
    )  # fmt: skip


def _heads(column: FrameColumn) -> list[tuple[str, bool]]:
    if column.unit is None:
        return [(column.head, column.number)]
    return [(column.head, True), ("95 % interval", True)]


def _cells(row: object, column: FrameColumn) -> list[TableCell]:
    if column.unit is None:
        return [TableCell(_written(getattr(row, column.name), column), number=column.number)]
    number = number_of(row, column.prefix)
    return [
        TableCell(
            value_said(number, column.unit, signed=column.signed), number=True,
            unsure=not (number.known and number.told),
        ),
        TableCell(interval_said(number, column.unit, signed=column.signed), number=True),
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
