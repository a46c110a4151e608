"""The API that `pointillist.connect(URL)` reads: bounded Parquet of what a viewer may see."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from threading import BoundedSemaphore
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar
from urllib.parse import urlencode

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import FastAPI, Query, Request
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from starlette.responses import Response

from aggregator.releases.release_files import SimulatedMark
from aggregator.releases.releases import moment
from analytics import RollupPeriod
from analytics.analyst_views import finite
from analytics.recent_hours import MINUTES, MOST_MINUTES
from analytics.release_source import CellBounds, ReleaseSource
from analytics.served_releases import ADDRESS, FORMAT, MOST_ROWS, NEWEST, ServedRows
from wire.catalogue import Catalogue

from .access_tokens import SeriesOwners, Viewer
from .application import PROBLEMS, admitted
from .page_answers import KeptValues, PackedAnswer, StoreAway, answered
from .page_shape import EVERYBODY, NUMBERS, Role
from .store_watch import FAILURES, NO_STORE, StoreState, StoreWatch, unreadable
from .view_panel import model_of

_T = TypeVar("_T")

_MOST_BYTES: Final = 64 << 20
_AT_ONCE: Final = 2  # answers that are made at a time: pages must not wait behind programs
_OUTCOMES: Final = 12
"""Rows that the windows of a period and cohort have at most, but for many reasons of rejection."""

_YEARS: Final = (1970, 8999)


def _bounded(when: datetime) -> datetime:
    """Give naive UTC; a year that no release is of becomes the nearest that arithmetic bears."""
    if not _YEARS[0] <= when.year <= _YEARS[1]:
        return datetime(min(max(when.year, _YEARS[0]), _YEARS[1] + 1), 1, 1)  # noqa: DTZ001
    return moment(when)


_Moment = Annotated[datetime, AfterValidator(_bounded)]
_SERIES = Annotated[str | None, Field(description="this task series alone", max_length=200)]
_PERIOD = Annotated[RollupPeriod, Field(description="how long windows are added up for")]
_SECTION = Annotated[
    str | None,
    Field(description="section of the catalogue; all without it", pattern=r"^[a-z_0-9]{1,64}$"),
]


_BY_COHORT = Annotated[bool, Field(description="a row for each cohort; else cohorts are added up")]


class RowsAsked(BaseModel):
    """What rows are asked for; moments are naive UTC."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: ClassVar[ServedRows]

    series: _SERIES = None
    since: Annotated[_Moment | None, Field(description="rows that start at or after it, UTC")] = (
        None
    )
    until: Annotated[_Moment | None, Field(description="rows that start before it, UTC")] = None

    def bounds(self, until: datetime | None) -> CellBounds:
        return {"series": self.series, "since": self.since, "until": until or self.until}

    def frame(self, source: ReleaseSource, until: datetime | None) -> pd.DataFrame:
        """Read the rows, up to where this part of them ends."""
        raise NotImplementedError


class CellsAsked(RowsAsked):
    kind = ServedRows.CELLS

    period: _PERIOD = RollupPeriod.HOUR
    section: _SECTION = None
    by_cohort: _BY_COHORT = False

    def frame(self, source: ReleaseSource, until: datetime | None) -> pd.DataFrame:
        bounds = self.bounds(until)
        return source.cells(self.period, self.section, by_cohort=self.by_cohort, **bounds)


class RecentAsked(RowsAsked):
    kind = ServedRows.RECENT

    since: Annotated[
        _Moment | None, Field(description="minutes that end after it, UTC; without it the newest")
    ] = None
    until: Annotated[_Moment | None, Field(description="minutes that end by it, UTC")] = None
    section: _SECTION = None
    minutes: Annotated[
        int,
        Field(
            description="how many minutes are added up; more than an hour's of one section alone",
            ge=1,
            le=MOST_MINUTES,
        ),
    ] = MINUTES
    by_cohort: _BY_COHORT = False

    @field_validator("minutes")
    @classmethod
    def _of_a_section(cls, minutes: int, known: ValidationInfo) -> int:
        """All sections of days would be read at once."""
        if minutes > MINUTES and known.data.get("section") is None:
            raise ValueError("expected a section")
        return minutes

    def frame(self, source: ReleaseSource, until: datetime | None) -> pd.DataFrame:
        return source.recent(
            self.section, minutes=self.minutes, by_cohort=self.by_cohort, **self.bounds(until)
        )


class OutcomesAsked(RowsAsked):
    kind = ServedRows.OUTCOMES

    period: _PERIOD = RollupPeriod.HOUR

    def frame(self, source: ReleaseSource, until: datetime | None) -> pd.DataFrame:
        return source.outcomes(self.period, **self.bounds(until))


class WindowsAsked(RowsAsked):
    kind = ServedRows.WINDOWS

    def frame(self, source: ReleaseSource, until: datetime | None) -> pd.DataFrame:
        return source.windows(**self.bounds(until))


class CausesAsked(RowsAsked):
    kind = ServedRows.CAUSES

    section: Literal["incidents", "hardware_faults"]

    def frame(self, source: ReleaseSource, until: datetime | None) -> pd.DataFrame:
        return source.causes(self.section, since=self.since, until=until or self.until)


@dataclass(frozen=True, slots=True)
class RowsAnswer:
    """Parquet of a part of what was asked for, and where the next part begins; None: none does."""

    parquet: PackedAnswer
    next_since: datetime | None

    def weight(self) -> int:
        return self.parquet.weight()


class ReleaseRows:
    """Rows of one store, as each viewer may see them."""

    def __init__(self, watch: StoreWatch, owners: SeriesOwners) -> None:
        self._watch, self._owners = watch, owners
        self._kept = KeptValues[RowsAnswer](_MOST_BYTES, RowsAnswer.weight)
        self._turns = BoundedSemaphore(_AT_ONCE)
        sections = Catalogue.load().sections
        self._cells = {section.name: len(section.cells) for section in sections}

    def rows(self, asked: RowsAsked, viewer: Viewer) -> RowsAnswer:
        """Give what was asked for, or its first part. Raises StoreAway."""
        generation, visible = self._standing(viewer)
        key = (asked, visible, generation)
        return self._kept.get(key, lambda: self._read(lambda of: self._made(of, asked, visible)))

    def newest(self, asked: NewestAsked, viewer: Viewer) -> datetime | None:
        """Give the start of the newest period that has ended, of what a viewer may see."""
        _, visible = self._standing(viewer)

        def newest(source: ReleaseSource) -> datetime | None:
            if visible is None or asked.series in visible:
                return source.newest(asked.period, asked.section, asked.series)
            names = visible if asked.series is None else ()
            found = [source.newest(asked.period, asked.section, name) for name in names]
            return max((start for start in found if start is not None), default=None)

        return self._read(newest)

    def simulated(self, viewer: Viewer) -> dict[str, Any] | None:
        """Say what a simulation wrote of itself; None where a fleet made the releases."""
        self._standing(viewer)
        mark = self._read(lambda source: source.mark())
        return None if mark is None else {**asdict(mark), "done": ()}

    def _standing(self, viewer: Viewer) -> tuple[str, frozenset[str] | None]:
        standing = self._watch.standing()
        if standing.state is StoreState.LOADING or standing.generation == NO_STORE:
            raise StoreAway(standing.detail)
        return standing.generation, self._owners.visible(viewer, standing.series)

    def _read(self, make: Callable[[ReleaseSource], _T]) -> _T:
        try:
            with self._turns:
                return make(self._watch.fleet().source)
        except FAILURES as error:
            raise StoreAway(unreadable(error)) from error

    def _made(
        self, source: ReleaseSource, asked: RowsAsked, visible: frozenset[str] | None
    ) -> RowsAnswer:
        if visible is not None and asked.series is not None and asked.series not in visible:
            return RowsAnswer(_parquet(asked.kind.schema.empty_table()), None)
        end = self._end(asked, _seen(source.outcomes(RollupPeriod.EIGHT_WEEKS), asked, visible))
        frame = _seen(asked.frame(source, end), asked, visible)
        if asked.kind is ServedRows.CAUSES:
            frame, end = _first_tables(frame)
        table = pa.Table.from_pandas(finite(frame), asked.kind.schema, preserve_index=False)
        return RowsAnswer(_parquet(table.replace_schema_metadata(None)), end)

    def _end(self, asked: RowsAsked, settled: pd.DataFrame) -> datetime | None:
        """Give where a part must end to have about as many rows as are planned; None: nowhere."""
        newest = asked.kind is ServedRows.RECENT and asked.since is None
        if settled.empty or newest or asked.kind is ServedRows.CAUSES:
            return None
        first, last = settled["period_start"].min(), settled["until"].max()
        begin = first if asked.since is None else max(first, pd.Timestamp(asked.since))
        stop = last if asked.until is None else min(last, pd.Timestamp(asked.until))
        span_s = self._span_s(asked, settled)
        if (stop - begin).total_seconds() <= span_s:
            return None
        end: datetime = (begin + timedelta(seconds=span_s)).to_pydatetime()
        return end

    def _span_s(self, asked: RowsAsked, settled: pd.DataFrame) -> int:
        """Give seconds in which there are about as many rows as are planned; one period at least.

        It counts cohorts even where they are added up, and sections that a series may not have.
        """
        each = settled.groupby(["series", "cohort"])[["covered_s", "windows"]].sum()
        windows_per_s = float((each["windows"] / each["covered_s"]).sum())
        if isinstance(asked, CellsAsked | RecentAsked):
            rows = self._cells.get(asked.section or "", sum(self._cells.values()))
        else:
            rows = _OUTCOMES if isinstance(asked, OutcomesAsked) else 1
        if isinstance(asked, CellsAsked | OutcomesAsked):
            return max(MOST_ROWS // (rows * len(each)), 1) * asked.period.seconds
        return max(int(MOST_ROWS / (rows * windows_per_s)), 1)


def _seen(frame: pd.DataFrame, asked: RowsAsked, visible: frozenset[str] | None) -> pd.DataFrame:
    """Leave out rows of series that were not asked for or that the viewer may not see."""
    wanted = visible if asked.series is None else {asked.series}
    return frame if wanted is None else frame[frame["series"].isin(wanted)]


def _first_tables(rows: pd.DataFrame) -> tuple[pd.DataFrame, datetime | None]:
    """Cut off tables of causes beyond what is planned; give where the rest begins."""
    if len(rows) <= MOST_ROWS:
        return rows, None
    starts = rows["window_start"].sort_values(ignore_index=True)
    end = starts[MOST_ROWS]
    if end == starts[0]:  # one window alone has more
        later = starts[starts > end]
        end = None if later.empty else later.iloc[0]
    return (rows, None) if end is None else (rows[rows["window_start"] < end], end.to_pydatetime())


def _parquet(table: pa.Table) -> PackedAnswer:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return PackedAnswer.of(buffer.getvalue(), pack=False)


_PARQUET: Final = "application/vnd.apache.parquet"


class NewestAsked(BaseModel):
    """Parameters of the newest period."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    period: _PERIOD = RollupPeriod.HOUR
    section: _SECTION = None
    series: _SERIES = None


SimulatedAnswer: Final = model_of(
    SimulatedMark,
    "SimulatedAnswer",
    "What was simulated, where no fleet stands behind the releases.",
    without="done",
)


class ReleasesAnswer(BaseModel):
    """What a program needs to know before it asks for rows; `format` changes with the rows."""

    product: Literal["pointillist"]
    version: str
    format: int
    simulated: SimulatedAnswer | None  # type: ignore[valid-type]


class NewestAnswer(BaseModel):
    """First moment of the newest period that has ended, else of the newest; null: there is none."""

    start: datetime | None


_KINDS: Final[tuple[tuple[type[RowsAsked], frozenset[Role], str], ...]] = (
    (CellsAsked, NUMBERS, "Roll-ups: sections by hour, day, week or eight weeks"),
    (RecentAsked, NUMBERS, "The last minutes, renewed with each window; newest without `since`"),
    (OutcomesAsked, EVERYBODY, "How windows ended, by period"),
    (WindowsAsked, EVERYBODY, "How each window ended"),
    (CausesAsked, NUMBERS, "Root-cause tables"),
)


def add_releases(app: FastAPI, rows: ReleaseRows) -> None:
    """Serve rows of releases; the guard has let the viewer in."""

    @app.get(ADDRESS, summary="Whether this is a server of releases", responses=PROBLEMS)
    def about(request: Request) -> ReleasesAnswer:
        mark = rows.simulated(admitted(request, EVERYBODY))
        return ReleasesAnswer(
            product="pointillist",
            version=metadata.version("pointillist"),
            format=FORMAT,
            simulated=None if mark is None else SimulatedAnswer(**mark),
        )

    @app.get(NEWEST, summary="The newest period that has ended", responses=PROBLEMS)
    def newest(request: Request, asked: Annotated[NewestAsked, Query()]) -> NewestAnswer:
        found = rows.newest(asked, admitted(request, NUMBERS))
        return NewestAnswer(start=None if found is None else found.replace(tzinfo=UTC))

    for asked, roles, summary in _KINDS:
        _add_rows(app, rows, asked, roles, summary)


def _add_rows(
    app: FastAPI, rows: ReleaseRows, kind: type[RowsAsked], roles: frozenset[Role], summary: str
) -> None:
    def serve(request: Request, asked: RowsAsked) -> Response:
        answer = rows.rows(asked, admitted(request, roles))
        response = answered(request, answer.parquet, _PARQUET)
        if answer.next_since is not None:
            named = dict(request.query_params) | {"since": answer.next_since.isoformat()}
            response.headers["link"] = f'<{kind.kind.address}?{urlencode(named)}>; rel="next"'
        return response

    serve.__annotations__["asked"] = Annotated[kind, Query()]
    link = {"description": "where the rest is, rel=next", "schema": {"type": "string"}}
    found: dict[str, Any] = {"content": {_PARQUET: {}}, "headers": {"Link": link}}
    app.get(
        kind.kind.address,
        summary=summary,
        description="Parquet; an answer that would be too long ends early and has a header `Link`.",
        operation_id=f"releases_{kind.kind.value}",
        response_class=Response,
        responses={**PROBLEMS, 200: found},
    )(serve)
