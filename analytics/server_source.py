"""Releases of a running server, as a folder gives them: the same columns, types and order."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.releases import releases
from aggregator.releases.release_files import SimulatedMark
from aggregator.releases.releases import (
    Moment,
    MoreViews,
    QueryRefused,
    moment,
    open_duckdb,
)

from .analyst_views import (
    OUTCOMES_VIEW,
    PERIOD_VIEWS,
    Frames,
    views_named,
    with_whole_numbers,
)
from .quantiles_sql import create_call
from .release_server import NotAFleetServer, ReleaseServer
from .rollup_periods import RollupPeriod
from .served_releases import NEWEST, ServedRows

MOST_ROWS: Final = 5_000_000
"""Of one frame: some two gigabytes."""
_MOST_PARTS: Final = 10_000
_MOST_PART_ROWS: Final = 2_000_000
_MOST_PART_BYTES: Final = 1 << 30
_THRIFT_BYTES: Final = 16 << 20
_CAUSE_SECTIONS: Final = ("incidents", "hardware_faults")


class ServerSource:
    """Releases that a server shows to this token; every frame is asked for anew.

    Raises      NotAFleetServer, FleetAccessRefused, FleetServerUnavailable, here and wherever
                something is asked
    """

    def __init__(self, server: ReleaseServer) -> None:
        """Ask whether it is a server of releases."""
        self._server = server
        server.about()

    def close(self) -> None:
        """Let the connections go."""
        self._server.close()

    def windows_in(
        self, period: RollupPeriod, since: Moment | None = None, until: Moment | None = None
    ) -> int:
        """See `ReleaseSource.windows_in`."""
        ended = self.outcomes(period, since=since, until=until)
        return int(ended.loc[ended["outcome"] != "rejected", "windows"].sum())

    def mark(self) -> SimulatedMark | None:
        """See `ReleaseSource.mark`."""
        said = self._server.about().get("simulated")
        if said is None:
            return None
        try:
            return SimulatedMark(**said)
        except TypeError:
            raise self._misunderstood("the mark of a simulation") from None

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
        asked = _asked(
            since, until, period=period, section=section, series=series,
            by_cohort="true" if by_cohort else None,
        )  # fmt: skip
        return with_whole_numbers(_frame(self._rows(ServedRows.CELLS, asked)))

    def outcomes(
        self,
        period: RollupPeriod,
        *,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """See `ReleaseSource.outcomes`."""
        asked = _asked(since, until, period=period, series=series)
        return with_whole_numbers(_frame(self._rows(ServedRows.OUTCOMES, asked)))

    def newest(
        self, period: RollupPeriod, section: str | None, series: str | None = None
    ) -> datetime | None:
        """See `ReleaseSource.newest`."""
        asked = _asked(None, None, period=period, section=section, series=series)
        start = self._server.json(NEWEST, asked).get("start")
        try:
            return None if start is None else moment(str(start))
        except ValueError:
            raise self._misunderstood("a moment") from None

    def windows(
        self,
        *,
        series: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """See `ReleaseSource.windows`."""
        return _frame(self._rows(ServedRows.WINDOWS, _asked(since, until, series=series)))

    def causes(
        self,
        section: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> pd.DataFrame:
        """See `ReleaseSource.causes`."""
        return _frame(self._rows(ServedRows.CAUSES, _asked(since, until, section=section)))

    def sql(self, text: str, frames: Frames) -> pd.DataFrame:
        """Run one SELECT here, over the views that it names, which are asked of the server.

        Views of single cells of windows are not among them: they are in the folder alone.
        Raises      QueryRefused, QueryForbidden
        """
        with open_duckdb() as database:
            named, _ = views_named(text, {*_VIEWS, *_IN_THE_FOLDER, *frames}, database)
        if named & _IN_THE_FOLDER:
            known = ", ".join(sorted({*_VIEWS, *frames}))
            got = ", ".join(sorted(named & _IN_THE_FOLDER))
            raise QueryRefused(f"SQL over a server: expected views of {known}, got {got}")
        rows = {name: frames[name]() if name in frames else self._view(name) for name in named}

        def create(database: duckdb.DuckDBPyConnection) -> None:
            for name, found in rows.items():
                database.register(name, found)
            create_call(database, text)

        # An empty folder: the query sees what is registered, and no file.
        with tempfile.TemporaryDirectory(prefix="pointillist-") as folder:
            return releases.query(text, folder, MoreViews(create, alone=True))

    def _view(self, name: str) -> pa.Table:
        """Give the rows of a view of SQL."""
        if name in PERIOD_VIEWS:
            asked = _asked(None, None, period=PERIOD_VIEWS[name], by_cohort="true")
            return self._rows(ServedRows.CELLS, asked)
        if name == OUTCOMES_VIEW:
            parts = []
            for period in RollupPeriod:
                part = self._rows(ServedRows.OUTCOMES, _asked(None, None, period=period))
                parts.append(part.add_column(0, "period", pa.array([period.value] * len(part))))
            return pa.concat_tables(parts, promote_options="permissive")
        if name == ServedRows.WINDOWS:
            return self._rows(ServedRows.WINDOWS, {})
        return pa.concat_tables(
            [self._rows(ServedRows.CAUSES, {"section": section}) for section in _CAUSE_SECTIONS]
        )

    def _rows(self, kind: ServedRows, asked: Mapping[str, str]) -> pa.Table:
        """Ask for rows, part after part."""
        parts: list[pa.Table] = []
        count = 0
        since: datetime | None = None
        while True:
            answer = self._server.rows(kind.address, asked)
            part = self._table(kind, answer.body)
            count += len(part)
            if count > MOST_ROWS or len(parts) == _MOST_PARTS:
                raise ValueError(
                    f"{kind}: expected at most {MOST_ROWS:,} rows in {_MOST_PARTS:,} parts, got "
                    "more: ask for a shorter time, one series or longer periods"
                )
            parts.append(part)
            if answer.next_since is None:
                return pa.concat_tables(parts)
            since = self._later(answer.next_since, since)
            asked = {**asked, "since": since.isoformat()}

    def _later(self, said: str, before: datetime | None) -> datetime:
        """Read where the next part begins: after the one before, so that there is an end to it."""
        try:
            since = moment(said)
        except ValueError:
            raise self._misunderstood("a moment") from None
        if before is not None and since <= before:
            raise self._misunderstood("a later moment")
        return since

    def _table(self, kind: ServedRows, body: bytes) -> pa.Table:
        """Read a part; what is longer than a part can be is not unpacked."""
        try:
            file = pq.ParquetFile(
                pa.BufferReader(body), thrift_string_size_limit=_THRIFT_BYTES,
                thrift_container_size_limit=_THRIFT_BYTES,
            )  # fmt: skip
            about = file.metadata
            groups = [about.row_group(at).total_byte_size for at in range(about.num_row_groups)]
            if about.num_rows > _MOST_PART_ROWS or sum(groups) > _MOST_PART_BYTES:
                raise self._misunderstood(f"at most {_MOST_PART_ROWS:,} rows in an answer")
            if not file.schema_arrow.equals(kind.schema):
                raise self._misunderstood(f"the columns of {kind} as this version has them")
            return file.read()
        except (pa.ArrowException, OSError):
            raise self._misunderstood("Parquet") from None

    def _misunderstood(self, wanted: str) -> NotAFleetServer:
        return NotAFleetServer(f"{self._server.url}: expected {wanted}, got something else")


_VIEWS: Final = frozenset({*PERIOD_VIEWS, OUTCOMES_VIEW, ServedRows.WINDOWS, ServedRows.CAUSES})
_IN_THE_FOLDER: Final = frozenset({"releases", "released", "latest", "suppressed"})


def _asked(since: Moment | None, until: Moment | None, **chosen: Any) -> dict[str, str]:
    """Give the parameters that are set, as an address has them."""
    bounds = {"since": since, "until": until}
    moments = {name: moment(when).isoformat() for name, when in bounds.items() if when is not None}
    return moments | {name: str(value) for name, value in chosen.items() if value is not None}


def _frame(rows: pa.Table) -> pd.DataFrame:
    """Give a frame in the order and with the types that a folder's has: both are DuckDB's."""
    with open_duckdb() as database:
        database.register("rows", rows)
        frame: pd.DataFrame = database.execute("FROM rows ORDER BY ALL").df()
    return frame
