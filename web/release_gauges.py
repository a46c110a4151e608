"""The newest release of each series as gauges for Prometheus, each number beside its error.

This application makes them, not the Leader: it has the rule who may see which series, and what a
scrape costs is out of the way of the Leader's loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import timedelta
from threading import Lock
from typing import Any, Final, NamedTuple

import pandas as pd
from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from aggregator.releases.releases import read_releases
from aggregator.statistics.ratios import normal_quantile
from analytics import FleetReleases
from analytics.rollup_files import utc

from .access_tokens import SeriesOwners, Viewer
from .page_shape import NUMBERS
from .store_watch import FAILURES, SeriesState, StoreState, StoreWatch

MOST_CELLS: Final = 5_000
"""Twice the catalogue: cells beyond are counted, not shown, so that a scrape stays bounded."""
RECENT_S: Final = 86_400
_RECENT_WINDOWS: Final = 8
_KEPT: Final = 16

_CELL: Final = ("series", "cohort", "section", "cell", "unit")
_NUMBERS: Final = (
    ("value", "release_value", "released value, in the unit that the label names"),
    ("standard_error", "release_standard_error", "standard error of the value"),
    ("share", "release_share_ratio", "value as a fraction of its whole"),
    (
        "share_error",
        "release_share_standard_error_ratio",
        "standard error of the share: half its 95 % interval by 1.96",
    ),
    (
        "q_value",
        "release_q_value",
        "false-discovery rate at which the value is told from zero in its section",
    ),
)
_WINDOW: Final = ("series", "cohort")


class CohortWindows(NamedTuple):
    """How the recent windows of one cohort of a series ended.

    suppressed_run   newest windows in a row that were suppressed
    released_ratio   released windows of those that ended in the last day, or of the last eight
    released_start   first moment of the newest that was released, naive UTC; None: none was
    """

    series: str
    cohort: str
    end_s: float
    suppressed_run: int
    released_ratio: float
    released_start: pd.Timestamp | None


class ReleaseGauges:
    """What a scrape says of one store; made once for each generation and sight of it."""

    def __init__(self, watch: StoreWatch, owners: SeriesOwners) -> None:
        self._watch, self._owners = watch, owners
        self._lock = Lock()
        self._made: dict[Hashable, bytes] = {}

    def text(self, viewer: Viewer) -> bytes:
        """Give the metrics that a viewer may see, in Prometheus' text format."""
        standing = self._watch.standing()
        visible = self._owners.visible(viewer, standing.series)
        numbers = viewer.role in NUMBERS
        key = (standing.generation, standing.state, visible, numbers)
        with self._lock:
            if key not in self._made:
                series = [s for s in standing.series if visible is None or s.name in visible]
                try:
                    made = _written(self._families(standing.state, series, numbers))
                except FAILURES:
                    return _written([_store(StoreState.BROKEN)])
                if len(self._made) >= _KEPT:
                    self._made.clear()
                self._made[key] = made
            return self._made[key]

    def _families(
        self, state: StoreState, series: Sequence[SeriesState], numbers: bool
    ) -> list[Metric]:
        found = [_store(state)]
        if state not in {StoreState.WELL, StoreState.STALE}:
            return found
        fleet = self._watch.fleet()
        windows = [one for each in series for one in _recent(fleet, each)]
        found += _window_families(series, windows)
        found += _budget_families(fleet, series)
        if numbers:
            parts = list(self._cells(windows))
            cells = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
            released = sum(window.released_start is not None for window in windows)
            found += _cell_families(cells, released - len(parts))
        return found

    def _cells(self, windows: Iterable[CohortWindows]) -> Iterator[pd.DataFrame]:
        """Rows of each cohort's newest release until they are enough; of one moment together."""
        read: dict[Hashable, pd.DataFrame] = {}
        cells = 0
        for window in windows:
            start = window.released_start
            if start is None:
                continue
            if cells > MOST_CELLS:
                return
            key = (window.series, start)
            if key not in read:
                read[key] = read_releases(
                    self._watch.folder, series=window.series, since=start,
                    until=start + timedelta(seconds=1),
                )  # fmt: skip
            rows = read[key][read[key]["cohort"].astype(str) == window.cohort]
            cells += len(rows)
            yield rows


def add_metrics(app: FastAPI, gauges: ReleaseGauges) -> None:
    """Serve them at /metrics; the guard has let the viewer in."""

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        body = gauges.text(request.state.viewer)
        return Response(body, media_type=CONTENT_TYPE_LATEST, headers={"cache-control": "no-store"})


def _recent(fleet: FleetReleases, series: SeriesState) -> Iterator[CohortWindows]:
    back_s = max(RECENT_S, _RECENT_WINDOWS * series.window_s)
    rows = fleet.windows(series.name, since=utc(series.end_s - back_s))
    for cohort, windows in rows.groupby("cohort"):
        newest_first = windows.sort_values("window_start", ascending=False)
        released = (newest_first["outcome"] == "released").to_numpy(bool)
        starts = newest_first["window_start"][released]
        end = newest_first["window_start"].iloc[0] + timedelta(seconds=series.window_s)
        yield CohortWindows(
            series=series.name,
            cohort=str(cohort),
            end_s=pd.Timestamp(end).timestamp(),
            suppressed_run=int(released.argmax()) if released.any() else len(released),
            released_ratio=float(released.mean()),
            released_start=pd.Timestamp(starts.iloc[0]) if len(starts) else None,
        )


def _store(state: StoreState) -> Metric:
    states = (([known.value], known is state) for known in StoreState)
    return _family("store_state", "how the store stands", ["state"], states)


def _family(
    name: str, text: str, labels: Sequence[str], numbers: Iterable[tuple[Iterable[object], float]]
) -> Metric:
    family = GaugeMetricFamily(f"pointillist_{name}", text, labels=labels)
    for label, number in numbers:
        family.add_metric([str(part) for part in label], float(number))
    return family


def _window_families(
    series: Iterable[SeriesState], windows: Sequence[CohortWindows]
) -> Iterator[Metric]:
    lengths = (([each.name], each.window_s) for each in series)
    yield _family("window_length_seconds", "length of its windows", ["series"], lengths)
    for name, text, field in (
        ("window_end_timestamp_seconds", "end of the newest settled window", "end_s"),
        (
            "windows_suppressed_run",
            "newest windows in a row that were suppressed",
            "suppressed_run",
        ),
        (
            "windows_released_ratio",
            "released windows of those settled in the last day, or of the last eight",
            "released_ratio",
        ),
    ):
        numbers = ((window[:2], getattr(window, field)) for window in windows)
        yield _family(name, text, _WINDOW, numbers)


def _budget_families(fleet: FleetReleases, series: Iterable[SeriesState]) -> Iterator[Metric]:
    rows = fleet.budget()
    rows = rows[rows["series"].isin([each.name for each in series]) & rows["spent"].notna()]
    for column, text in (
        ("weight", "part of a host's budget that the series may cost in 168 hours"),
        ("spent", "part of a host's budget that its windows of the newest 168 hours cost"),
    ):
        numbers = (([name], part) for name, part in zip(rows["series"], rows[column], strict=True))
        yield _family(f"budget_{column}_ratio", text, ["series"], numbers)


def _cell_families(rows: pd.DataFrame, unread: int) -> Iterator[Metric]:
    left_out = max(len(rows) - MOST_CELLS, 0)
    cells_left = "cells beyond what a scrape shows, of the releases that it reads"
    yield _family("release_cells_left_out", cells_left, (), [((), left_out)])
    releases_left = "newest releases beyond what a scrape reads"
    yield _family("releases_left_out", releases_left, (), [((), unread)])
    if rows.empty:
        return
    ordered = rows.sort_values(list(_CELL)).head(MOST_CELLS)
    half = (ordered["share_high"] - ordered["share_low"]) / 2
    ordered = ordered.assign(share_error=half / normal_quantile())
    labels = list(ordered[list(_CELL)].itertuples(index=False))
    for column, name, text in _NUMBERS:
        numbers = zip(labels, ordered[column], strict=True)
        yield _family(name, text, _CELL, (pair for pair in numbers if not pd.isna(pair[1])))
    each = ordered.drop_duplicates(list(_WINDOW))
    named = list(each[list(_WINDOW)].itertuples(index=False))
    hosts = zip(named, each["n_hosts"], strict=True)
    yield _family("release_hosts", "accepted hosts of the newest release", _WINDOW, hosts)
    ends_s = each["window_start"].to_numpy("datetime64[s]").astype("int64") + each["window_s"]
    end = "end of the window that the newest release is of"
    ends = zip(named, ends_s, strict=True)
    yield _family("release_window_end_timestamp_seconds", end, _WINDOW, ends)


class _Said(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _written(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Said(families))
    text: Any = generate_latest(registry)
    return bytes(text)
