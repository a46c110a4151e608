"""Where frames come from: a folder of releases with its roll-ups, or whatever answers the same."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import pandas as pd

from aggregator.releases.release_files import SimulatedMark, read_mark
from aggregator.releases.releases import (
    Moment,
    MoreViews,
    moment,
    open_views,
    read_causes,
    read_windows,
)
from wire.catalogue import LEFT_OUT

from .analyst_views import Frames, query, with_whole_numbers
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
from .rollups import SCHEMAS, Refreshed, files_to_read, refresh
from .sql import cells_sql, merged_outcomes_sql, merged_sql

MAX_AGE_S: Final = 30.0
"""How old roll-ups may be before releases are looked at again."""

_ATTEMPTS: Final = 5
"""At files of months, which go when one of their days changes."""


class ReleaseSource(Protocol):
    """What the analyst's layer asks of releases; every time is naive UTC."""

    def close(self) -> None:
        """Let files and connections go."""
        ...

    def windows_in(
        self, period: RollupPeriod, since: Moment | None = None, until: Moment | None = None
    ) -> int:
        """Count the windows of the periods that start in [since, until), suppressed ones too.

        It grows with whatever is new in these periods: frames of them are kept by it.
        """
        ...

    def mark(self) -> SimulatedMark | None:
        """Return what a simulation wrote beside the releases; None where a fleet made them."""
        ...

    def cells(
        self,
        period: RollupPeriod,
        section: str | None,
        *,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        by_cohort: bool = False,
    ) -> pd.DataFrame:
        """Return roll-ups of a section, None: of all; columns as the view of the period."""
        ...

    def outcomes(
        self,
        period: RollupPeriod,
        *,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """Return how windows ended, columns as the view `outcomes` but `period`."""
        ...

    def newest(
        self, period: RollupPeriod, section: str | None, series: str | None = None
    ) -> datetime | None:
        """Return the start of the newest period of a section that has ended; else the newest."""
        ...

    def windows(
        self,
        *,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """Return each window's end, columns as the view `windows`."""
        ...

    def causes(
        self,
        section: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """Return root-cause tables, columns as the view `causes`."""
        ...

    def sql(self, text: str, frames: Frames) -> pd.DataFrame:
        """Run one SELECT over every view, those of `frames` too."""
        ...


class FolderSource:
    """A folder of released Parquet; one connection serves all threads.

    rollups     where its roll-ups are kept; None: beside the releases, else in the user's cache
    max_age_s   roll-ups are brought up to date when asked for and older than this
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rollups: str | os.PathLike[str] | None = None,
        *,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        """Open it. Raises FileNotFoundError when there is no such folder."""
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise FileNotFoundError(f"no folder of releases at {self.folder}")
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
        with suppress(duckdb.ResourceInUseException):
            self._database.close()

    def refresh(self) -> Refreshed:
        """Bring the roll-ups up to date now.

        Raises      RollupsUnavailable, FileNotFoundError
        """
        with self._lock:
            done = refresh(self.folder, self.rollups)
            self._read_hours()
            self._fresh_until = time.monotonic() + self._max_age_s
        return done

    def _read_hours(self) -> None:
        """Read how many windows roll-ups are made of, where another program has changed it too."""
        changed_ns = settled_ns(self.rollups)
        if changed_ns != self._hours_ns:
            self._hours = SettledHours.read(self.rollups).in_order()
            self._hours_ns = changed_ns

    def windows_in(
        self, period: RollupPeriod, since: Moment | None = None, until: Moment | None = None
    ) -> int:
        """See `ReleaseSource.windows_in`."""
        self._look()
        first, end = _bounds(since, until)
        return self._hours.between(period.start(first), period.first_from(end))

    def mark(self) -> SimulatedMark | None:
        """See `ReleaseSource.mark`.

        Raises      MarkUnreadable
        """
        return read_mark(self.folder)

    def cells(
        self,
        period: RollupPeriod,
        section: str | None,
        *,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        by_cohort: bool = False,
    ) -> pd.DataFrame:
        """See `ReleaseSource.cells`."""
        bounds = _within(series, since, until)
        values = [value for _, value in (*_of(section), *bounds, *bounds)]

        def text() -> str:
            sums = self._text(SUMS, period, since, until)
            outcomes = self._text(OUTCOMES, period, since, until)
            each = f"FROM ({sums}) {_where([*_of(section), *bounds])}"
            ends = f"FROM ({outcomes}) {_where(bounds)}"
            return _cells_text(each, ends, period, by_cohort=by_cohort)

        return self._frame(text, values)

    def outcomes(
        self,
        period: RollupPeriod,
        *,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """See `ReleaseSource.outcomes`."""
        conditions = _within(series, since, until)

        def text() -> str:
            rows = self._text(OUTCOMES, period, since, until)
            return (
                f"SELECT *, covered_s / {period.seconds} AS coverage "  # noqa: S608
                f"FROM ({rows}) {_where(conditions)} ORDER BY ALL"
            )

        return self._frame(text, [value for _, value in conditions])

    def newest(
        self, period: RollupPeriod, section: str | None, series: str | None = None
    ) -> datetime | None:
        """See `ReleaseSource.newest`."""
        conditions = [*_of(section), *_within(series, None, None)]
        values = [value for _, value in conditions]
        found: list[tuple[datetime, datetime]] = []
        # Two files hold the newest two periods, wherever one ends.
        for file in reversed(self._files(SUMS, period)):
            text = (
                f"SELECT period_start, max(until) FROM ({rows_sql([file], SCHEMAS[SUMS])}) "  # noqa: S608
                f"{_where(conditions)} GROUP BY ALL"
            )
            found += self._rows(text, values)
            if len(found) > 1:
                break
        last = max((until for _, until in found), default=None)
        ended = [start for start, _ in found if last is not None and start + period.length <= last]
        return max(ended or [start for start, _ in found], default=None)

    def windows(
        self,
        *,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """See `ReleaseSource.windows`."""
        return read_windows(self.folder, series=series, since=since, until=until)

    def causes(
        self,
        section: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """See `ReleaseSource.causes`."""
        return read_causes(self.folder, section=section, since=since, until=until)

    def sql(self, text: str, frames: Frames) -> pd.DataFrame:
        """See `ReleaseSource.sql`.

        Raises      QueryRefused, QueryForbidden
        """
        return query(text, self.folder, self.rollups, frames, self._look, self._database)

    def _text(
        self, kind: str, period: RollupPeriod, since: Moment | None, until: Moment | None
    ) -> str:
        self._look()
        files = files_to_read(self.rollups, kind, period, *_bounds(since, until))
        return rows_sql(files, SCHEMAS[kind])

    def _files(self, kind: str, period: RollupPeriod) -> list[Path]:
        self._look()
        return files_between(self.rollups, kind, period, ALWAYS, NEVER)

    def _look(self) -> None:
        """Bring roll-ups up to date where they are too old."""
        if self._fresh_until is None or time.monotonic() >= self._fresh_until:
            self.refresh()

    def _rows(self, text: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._database.cursor() as cursor:
            rows: list[tuple[Any, ...]] = cursor.execute(text, list(values)).fetchall()
        return rows

    def _frame(self, text: Callable[[], str], values: Sequence[object]) -> pd.DataFrame:
        """Ask; again where a file that `text` named went meanwhile."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                with self._database.cursor() as cursor:
                    frame: pd.DataFrame = cursor.execute(text(), list(values)).df()
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
    return f"WITH {', '.join(parts)} FROM ({rows}) WHERE cell != '{LEFT_OUT}' ORDER BY ALL"


def _bounds(since: Moment | None, until: Moment | None) -> tuple[datetime, datetime]:
    return (
        ALWAYS if since is None else moment(since),
        NEVER if until is None else moment(until),
    )


def _of(section: str | None) -> list[tuple[str, object]]:
    return [] if section is None else [("section = ?", section)]


def _within(
    series: str | None, since: Moment | None, until: Moment | None
) -> list[tuple[str, object]]:
    conditions: list[tuple[str, object]] = [
        ("series = ?", series),
        ("period_start >= ?", None if since is None else moment(since)),
        ("period_start < ?", None if until is None else moment(until)),
    ]
    return [(text, value) for text, value in conditions if value is not None]


def _where(conditions: Sequence[tuple[str, object]]) -> str:
    return f"WHERE {' AND '.join(text for text, _ in conditions)}" if conditions else ""
