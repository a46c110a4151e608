"""The API that `pointillist.connect(URL)` reads: rows of releases, as a viewer may see them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from aggregator.releases.release_files import SimulatedMark
from aggregator.releases.releases import moment
from analytics import RollupPeriod
from analytics.served_releases import ADDRESS, FORMAT, NEWEST, ServedRows

from .application import PROBLEMS
from .packed_answer import answered
from .page_answers import StoreAway
from .page_shape import EVERYBODY, NUMBERS, Role
from .served_rows import ReleaseRows, RowsAsked
from .view_files import model_of
from .viewers import Viewer

_T = TypeVar("_T")

_PARQUET: Final = "application/vnd.apache.parquet"
_YEARS: Final = (1970, 8999)


def _bounded(when: datetime) -> datetime:
    """Give naive UTC; a year that no release is of becomes the nearest that arithmetic bears."""
    if not _YEARS[0] <= when.year <= _YEARS[1]:
        return datetime(min(max(when.year, _YEARS[0]), _YEARS[1] + 1), 1, 1)  # noqa: DTZ001
    return moment(when)


_Moment = Annotated[datetime, AfterValidator(_bounded)]


class _Span(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    series: Annotated[str | None, Field(description="this task series alone", max_length=200)] = (
        None
    )
    since: Annotated[_Moment | None, Field(description="rows that start at or after it, UTC")] = (
        None
    )
    until: Annotated[_Moment | None, Field(description="rows that start before it, UTC")] = None


_PERIOD = Annotated[RollupPeriod, Field(description="how long windows are added up for")]
_SECTION = Annotated[
    str | None,
    Field(description="section of the catalogue; all without it", pattern=r"^[a-z_0-9]{1,64}$"),
]


class CellsAsked(_Span):
    """Parameters of roll-ups."""

    period: _PERIOD = RollupPeriod.HOUR
    section: _SECTION = None
    by_cohort: Annotated[
        bool, Field(description="a row for each cohort; else cohorts are added up")
    ] = False


class OutcomesAsked(_Span):
    """Parameters of how windows ended by period."""

    period: _PERIOD = RollupPeriod.HOUR


class WindowsAsked(_Span):
    """Parameters of how each window ended."""


class CausesAsked(_Span):
    """Parameters of root-cause tables."""

    section: Literal["incidents", "hardware_faults"]


class NewestAsked(BaseModel):
    """Parameters of the newest period."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    period: _PERIOD = RollupPeriod.HOUR
    section: _SECTION = None
    series: Annotated[str | None, Field(description="this task series alone", max_length=200)] = (
        None
    )


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


_KINDS: Final[dict[ServedRows, tuple[type[_Span], frozenset[Role], str]]] = {
    ServedRows.CELLS: (CellsAsked, NUMBERS, "Roll-ups: sections by hour, day, week or eight weeks"),
    ServedRows.OUTCOMES: (OutcomesAsked, EVERYBODY, "How windows ended, by period"),
    ServedRows.WINDOWS: (WindowsAsked, EVERYBODY, "How each window ended"),
    ServedRows.CAUSES: (CausesAsked, NUMBERS, "Root-cause tables"),
}


def add_releases(app: FastAPI, rows: ReleaseRows) -> None:
    """Serve rows of releases; the guard has let the viewer in."""

    @app.get(ADDRESS, summary="Whether this is a server of releases", responses=PROBLEMS)
    def about(request: Request) -> ReleasesAnswer:
        viewer = _admitted(request, EVERYBODY)
        mark = _made(lambda: rows.simulated(viewer))
        return ReleasesAnswer(
            product="pointillist",
            version=metadata.version("pointillist"),
            format=FORMAT,
            simulated=None if mark is None else SimulatedAnswer(**mark),
        )

    @app.get(NEWEST, summary="The newest period that has ended", responses=PROBLEMS)
    def newest(request: Request, asked: Annotated[NewestAsked, Query()]) -> NewestAnswer:
        viewer = _admitted(request, NUMBERS)
        found = _made(lambda: rows.newest(asked.period, asked.section, asked.series, viewer))
        return NewestAnswer(start=None if found is None else found.replace(tzinfo=UTC))

    for kind in ServedRows:
        _add_rows(app, rows, kind)


def _add_rows(app: FastAPI, rows: ReleaseRows, kind: ServedRows) -> None:
    parameters, roles, summary = _KINDS[kind]

    def serve(request: Request, asked: Annotated[_Span, Query()]) -> Response:
        viewer = _admitted(request, roles)
        wanted = RowsAsked(kind, **asked.model_dump())
        answer = _made(lambda: rows.rows(wanted, viewer))
        response = answered(request, answer.parquet, _PARQUET)
        if answer.next_since is not None:
            named = dict(request.query_params) | {"since": answer.next_since.isoformat()}
            response.headers["link"] = f'<{kind.address}?{urlencode(named)}>; rel="next"'
        return response

    serve.__annotations__["asked"] = Annotated[parameters, Query()]
    link = {"description": "where the rest is, rel=next", "schema": {"type": "string"}}
    found: dict[str, Any] = {"content": {_PARQUET: {}}, "headers": {"Link": link}}
    app.get(
        kind.address,
        summary=summary,
        description="Parquet; an answer that would be too long ends early and has a header `Link`.",
        operation_id=f"releases_{kind.value}",
        response_class=Response,
        responses={**PROBLEMS, 200: found},
    )(serve)


def _admitted(request: Request, roles: frozenset[Role]) -> Viewer:
    viewer: Viewer = request.state.viewer
    if viewer.role not in roles:
        raise HTTPException(403, f"These rows are not for the role {viewer.role}.")
    return viewer


def _made(make: Callable[[], _T]) -> _T:
    try:
        return make()
    except StoreAway as error:
        raise HTTPException(503, str(error)) from error
