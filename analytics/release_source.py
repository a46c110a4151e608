"""Where frames come from: a folder of releases with its roll-ups, or whatever answers the same."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol, TypedDict, Unpack

import duckdb
import pandas as pd

from aggregator.releases import releases
from aggregator.releases.release_files import SimulatedMark, read_mark
from aggregator.releases.releases import (
    Moment,
    MoreViews,
    moment,
    open_views,
    read_causes,
    read_windows,
)
from aggregator.releases.window_files import need_store
from wire.catalogue import NO_CLASSES

from .analyst_views import (
    OUTCOMES_VIEW,
    PERIOD_VIEWS,
    Frames,
    create_views,
    views_named,
    with_whole_numbers,
)
from .quantiles_sql import create_call
from .recent_hours import MINUTES, RECENT_VIEW, recent_sql
from .rollup_files import (
    ALWAYS,
    NEVER,
    OUTCOMES,
    SUMS,
    OrderedHours,
    RollupPeriod,
    SettledHours,
    files_between,
    rollup_folder,
    rows_sql,
    settled_ns,
)
from .rollups import SCHEMAS, files_to_read, refresh
from .sql import NOT_JUDGED, cells_sql, merged_outcomes_sql, merged_sql

MAX_AGE_S: Final = 30.0  # how old roll-ups may be before releases are looked at again

_ATTEMPTS: Final = 5  # at files of months, which go when one of their days changes

_JUDGEMENTS: Final = re.compile(r"\*|q_value|told", re.IGNORECASE)  # what asks for them

Conditions = list[tuple[str, object]]  # texts of SQL with the value of each


class TimeBounds(TypedDict, total=False):
    """What starts in [since, until)."""

    since: Moment | None
    until: Moment | None


class CellBounds(TimeBounds, total=False):
    """The same, of one series."""

    series: str | None


class ReleaseSource(Protocol):
    """What the analyst's layer asks of releases; every time is naive UTC."""

    def close(self) -> None: ...

    def windows_in(
        self, period: RollupPeriod, since: Moment | None = None, until: Moment | None = None
    ) -> int:
        """Count the windows, suppressed too, of periods that start in [since, until).

        It grows with whatever is new in these periods: frames of them are kept by it.
        """

    def mark(self) -> SimulatedMark | None:
        """Return what a simulation wrote beside the releases; None where a fleet made them."""

    def cells(
        self,
        period: RollupPeriod,
        section: str | None,
        *,
        by_cohort: bool = False,
        **bounds: Unpack[CellBounds],
    ) -> pd.DataFrame:
        """Return roll-ups of a section, None: of all; columns as the view of the period."""

    def recent(
        self,
        section: str | None,
        *,
        minutes: int = MINUTES,
        by_cohort: bool = False,
        **bounds: Unpack[CellBounds],
    ) -> pd.DataFrame:
        """Return so many minutes to each moment in (since, until] at which a window ended.

        Without `since` those to the newest moment alone; columns as `cells`.
        """

    def outcomes(self, period: RollupPeriod, **bounds: Unpack[CellBounds]) -> pd.DataFrame:
        """Return how windows ended, columns as the view `outcomes` but `period`."""

    def newest(
        self, period: RollupPeriod, section: str | None, series: str | None = None
    ) -> datetime | None:
        """Return the start of the newest period of a section that has ended; else the newest."""

    def windows(self, **bounds: Unpack[CellBounds]) -> pd.DataFrame:
        """Return each window's end, columns as the view `windows`."""

    def causes(self, section: str, **span: Unpack[TimeBounds]) -> pd.DataFrame:
        """Return root-cause tables, columns as the view `causes`."""

    def sql(self, text: str, frames: Frames) -> pd.DataFrame:
        """Run one SELECT over every view, those of `frames` too."""


class FolderSource:
    """A folder of released Parquet, for all threads; roll-ups beside it or in the user's cache.

    max_age_s   roll-ups are brought up to date when asked for and older than this
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rollups: str | os.PathLike[str] | None = None,
        *,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        """Open it. Raises NoStore."""
        self.folder = Path(folder).resolve()
        need_store(self.folder)
        self.rollups = rollup_folder(self.folder) if rollups is None else Path(rollups).resolve()
        self._max_age_s = max_age_s
        self._fresh_until: float | None = None
        self._hours = OrderedHours([], [0])
        self._hours_ns = 0
        self._lock = threading.Lock()
        alone = MoreViews(lambda _: None, [self.rollups], alone=True)
        self._database: duckdb.DuckDBPyConnection = open_views(self.folder, alone)

    def close(self) -> None:
        """Let the connection go; a query that still runs takes it along when it ends."""
        with suppress(duckdb.Error):
            self._database.close()

    def refresh(self) -> int:
        """Bring the roll-ups up to date now. Raises RollupsUnavailable, NoStore, WindowTwice."""
        with self._lock:
            done = refresh(self.folder, self.rollups)
            # Another program may have changed it too.
            if (changed_ns := settled_ns(self.rollups)) != self._hours_ns:
                self._hours = SettledHours.read(self.rollups).in_order()
                self._hours_ns = changed_ns
            self._fresh_until = time.monotonic() + self._max_age_s
        return done

    def windows_in(
        self, period: RollupPeriod, since: Moment | None = None, until: Moment | None = None
    ) -> int:
        self._look()
        first, end = _bounds(since, until)
        return self._hours.between(period.start(first), period.first_from(end))

    def mark(self) -> SimulatedMark | None:
        """See `ReleaseSource.mark`. Raises MarkUnreadable."""
        return read_mark(self.folder)

    def cells(
        self,
        period: RollupPeriod,
        section: str | None,
        *,
        by_cohort: bool = False,
        **bounds: Unpack[CellBounds],
    ) -> pd.DataFrame:
        of, within = _of(section), _within(**bounds)

        def text() -> str:
            each = f"FROM ({self._text(SUMS, period, bounds)}) {_where([*of, *within])}"
            ends = f"FROM ({self._text(OUTCOMES, period, bounds)}) {_where(within)}"
            return _cells_text(each, ends, period, by_cohort=by_cohort)

        return self._frame(text, [*of, *within, *within])

    def recent(
        self,
        section: str | None,
        *,
        minutes: int = MINUTES,
        by_cohort: bool = False,
        **bounds: Unpack[CellBounds],
    ) -> pd.DataFrame:
        since, until = bounds.get("since"), bounds.get("until")

        def text() -> str:
            rows = recent_sql(
                self.folder, minutes=minutes, section=section, series=bounds.get("series"),
                since=None if since is None else moment(since),
                until=None if until is None else moment(until), by_cohort=by_cohort,
            )  # fmt: skip
            return f"FROM ({rows}) WHERE cell NOT IN {NO_CLASSES} ORDER BY ALL"

        return self._frame(text, [])

    def outcomes(self, period: RollupPeriod, **bounds: Unpack[CellBounds]) -> pd.DataFrame:
        within = _within(**bounds)

        def text() -> str:
            return (
                f"SELECT *, covered_s / {period.seconds} AS coverage "  # noqa: S608
                f"FROM ({self._text(OUTCOMES, period, bounds)}) {_where(within)} ORDER BY ALL"
            )

        return self._frame(text, within)

    def newest(
        self, period: RollupPeriod, section: str | None, series: str | None = None
    ) -> datetime | None:
        self._look()
        chosen = [*_of(section), *_within(series=series)]
        found: list[tuple[datetime, datetime]] = []
        # Two files hold the newest two periods, wherever one ends.
        for file in reversed(files_between(self.rollups, SUMS, period, ALWAYS, NEVER)):
            text = (
                f"SELECT period_start, max(until) FROM ({rows_sql([file], SCHEMAS[SUMS])}) "  # noqa: S608
                f"{_where(chosen)} GROUP BY ALL"
            )
            with self._database.cursor() as cursor:
                found += cursor.execute(text, _values(chosen)).fetchall()
            if len(found) > 1:
                break
        last = max((until for _, until in found), default=None)
        ended = [start for start, _ in found if last is not None and start + period.length <= last]
        return max(ended or [start for start, _ in found], default=None)

    def windows(self, **bounds: Unpack[CellBounds]) -> pd.DataFrame:
        return read_windows(self.folder, **bounds)

    def causes(self, section: str, **span: Unpack[TimeBounds]) -> pd.DataFrame:
        return read_causes(self.folder, section=section, **span)

    def sql(self, text: str, frames: Frames) -> pd.DataFrame:
        """See `ReleaseSource.sql`. Raises QueryRefused, QueryForbidden."""
        own = {*PERIOD_VIEWS, OUTCOMES_VIEW, RECENT_VIEW, *frames}
        named, alone = views_named(text, own, self._database)
        if not named:
            more = MoreViews(lambda database: create_call(database, text))
            return releases.query(text, self.folder, more)
        self._look()
        made = {name: frames[name]() for name in named & set(frames)}

        def ask(*, judged: bool) -> pd.DataFrame:
            def create(database: duckdb.DuckDBPyConnection) -> None:
                create_views(database, self.rollups, named, judged=judged)
                if RECENT_VIEW in named:
                    rows = recent_sql(self.folder, judged=judged)
                    database.execute(f"CREATE TEMP VIEW {RECENT_VIEW} AS {rows}")
                for name, frame in made.items():
                    database.register(name, frame)
                create_call(database, text)

            # The own database sees the roll-ups alone; views are a cursor's own.
            more = MoreViews(create, [self.rollups], alone, self._database if alone else None)
            return releases.query(text, self.folder, more)

        if not _JUDGEMENTS.search(text):
            try:
                return ask(judged=False)
            except releases.QueryRefused as refused:  # by a name that the text does not show
                if NOT_JUDGED not in str(refused):
                    raise
        return ask(judged=True)

    def _text(self, kind: str, period: RollupPeriod, bounds: CellBounds) -> str:
        self._look()
        first, end = _bounds(bounds.get("since"), bounds.get("until"))
        return rows_sql(files_to_read(self.rollups, kind, period, first, end), SCHEMAS[kind])

    def _look(self) -> None:
        if self._fresh_until is None or time.monotonic() >= self._fresh_until:
            self.refresh()

    def _frame(self, text: Callable[[], str], chosen: Conditions) -> pd.DataFrame:
        """Ask; again where a file that `text` named went meanwhile."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                with self._database.cursor() as cursor:
                    frame: pd.DataFrame = cursor.execute(text(), _values(chosen)).df()
                return with_whole_numbers(frame)
            except duckdb.IOException:
                if not left:
                    raise
        raise AssertionError("the last attempt returns or raises")


def _cells_text(each: str, ends: str, period: RollupPeriod, *, by_cohort: bool) -> str:
    """Rows for people of sums and outcomes, in SQL, in order."""
    parts = [f"each AS ({each})", f"ends AS ({ends})"]
    names, cohorts = ("FROM each", "FROM ends"), "1"
    if not by_cohort:
        every = "NULL::INTEGER"
        counted = "SELECT series, count(DISTINCT cohort) AS cohorts FROM each GROUP BY series"
        merged = merged_sql("FROM each", cohort=every)
        parts += [
            f"summed AS (FROM ({merged}) JOIN ({counted}) USING (series))",
            f"ended AS ({merged_outcomes_sql('FROM ends', cohort=every)})",
        ]
        names, cohorts = ("FROM summed", "FROM ended"), "cohorts"
    rows = cells_sql(*names, period.seconds, cohorts)
    return f"WITH {', '.join(parts)} FROM ({rows}) WHERE cell NOT IN {NO_CLASSES} ORDER BY ALL"


def _bounds(since: Moment | None, until: Moment | None) -> tuple[datetime, datetime]:
    return (
        ALWAYS if since is None else moment(since),
        NEVER if until is None else moment(until),
    )


def _of(section: str | None) -> Conditions:
    return [] if section is None else [("section = ?", section)]


def _within(
    series: str | None = None, since: Moment | None = None, until: Moment | None = None
) -> Conditions:
    conditions: Conditions = [
        ("series = ?", series),
        ("period_start >= ?", None if since is None else moment(since)),
        ("period_start < ?", None if until is None else moment(until)),
    ]
    return [(text, value) for text, value in conditions if value is not None]


def _where(conditions: Conditions) -> str:
    return f"WHERE {' AND '.join(text for text, _ in conditions)}" if conditions else ""


def _values(conditions: Conditions) -> list[object]:
    return [value for _, value in conditions]
