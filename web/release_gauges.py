"""The newest release of each series as gauges for Prometheus, each number beside its error.

They are made of released Parquet by this application, not by the Leader: it has the rule who may
see which series, and whatever a scrape costs is out of the way of the Leader's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import Any, Final

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
from analytics.spent_budget import SeriesTask

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
    ("value", "pointillist_release_value", "released value, in the unit that the label names"),
    ("standard_error", "pointillist_release_standard_error", "standard error of the value"),
    ("share", "pointillist_release_share_ratio", "value as a fraction of its whole"),
    (
        "share_error",
        "pointillist_release_share_standard_error_ratio",
        "standard error of the share: half its 95 % interval by 1.96",
    ),
    (
        "q_value",
        "pointillist_release_q_value",
        "false-discovery rate at which the value is told from zero in its section",
    ),
)
_WINDOW: Final = ("series", "cohort")


@dataclass(frozen=True, slots=True)
class CohortWindows:
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
    """What a scrape says of one store; made once for each generation of it and each sight of it.

    tasks   of the series, for what they spend of the budget; without them nothing is said of it
    """

    def __init__(
        self, watch: StoreWatch, owners: SeriesOwners, tasks: Sequence[SeriesTask] = ()
    ) -> None:
        self._watch, self._owners, self._tasks = watch, owners, tuple(tasks)
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
                    families = self._families(standing.state, series, numbers)
                    made = _written(families)
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
        found += _budget_families(FleetReleases(fleet.source, tasks=self._tasks), series)
        if numbers:
            parts = list(self._cells(windows))
            cells = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
            released = sum(window.released_start is not None for window in windows)
            found += _cell_families(cells, released - len(parts))
        return found

    def _cells(self, windows: Iterable[CohortWindows]) -> Iterator[pd.DataFrame]:
        """Rows of the newest release of each cohort, as `read_releases`, until they are enough.

        Cohorts whose newest windows begin at the same moment are read together.
        """
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
    family = GaugeMetricFamily("pointillist_store_state", "how the store stands", labels=["state"])
    for known in StoreState:
        family.add_metric([known.value], float(known is state))
    return family


def _window_families(
    series: Iterable[SeriesState], windows: Sequence[CohortWindows]
) -> Iterator[Metric]:
    length = GaugeMetricFamily(
        "pointillist_window_length_seconds", "length of its windows", labels=["series"]
    )
    for each in series:
        length.add_metric([each.name], each.window_s)
    yield length
    said: tuple[tuple[str, str, Callable[[CohortWindows], float]], ...] = (
        ("window_end_timestamp_seconds", "end of the newest settled window", lambda w: w.end_s),
        (
            "windows_suppressed_run",
            "newest windows in a row that were suppressed",
            lambda w: float(w.suppressed_run),
        ),
        (
            "windows_released_ratio",
            "released windows of those settled in the last day, or of the last eight",
            lambda w: w.released_ratio,
        ),
    )
    for name, text, value in said:
        family = GaugeMetricFamily(f"pointillist_{name}", text, labels=_WINDOW)
        for window in windows:
            family.add_metric([window.series, window.cohort], value(window))
        yield family


def _budget_families(fleet: FleetReleases, series: Iterable[SeriesState]) -> Iterator[Metric]:
    names = {each.name for each in series}
    rows = fleet.budget()
    rows = rows[rows["series"].isin(names) & rows["spent"].notna()]
    for column, text in (
        ("weight", "part of a host's budget that the series may cost in 168 hours"),
        ("spent", "part of a host's budget that its windows of the newest 168 hours cost"),
    ):
        family = GaugeMetricFamily(f"pointillist_budget_{column}_ratio", text, labels=["series"])
        for name, value in zip(rows["series"], rows[column], strict=True):
            family.add_metric([str(name)], float(value))
        yield family


def _cell_families(rows: pd.DataFrame, unread: int) -> Iterator[Metric]:
    left_out = max(len(rows) - MOST_CELLS, 0)
    yield GaugeMetricFamily(
        "pointillist_release_cells_left_out",
        "cells beyond what a scrape shows, of the releases that it reads",
        value=left_out,
    )
    yield GaugeMetricFamily(
        "pointillist_releases_left_out", "newest releases beyond what a scrape reads", value=unread
    )
    if rows.empty:
        return
    ordered = rows.sort_values(list(_CELL)).head(MOST_CELLS)
    half = (ordered["share_high"] - ordered["share_low"]) / 2
    ordered = ordered.assign(share_error=half / normal_quantile())
    labels = [tuple(map(str, row)) for row in ordered[list(_CELL)].itertuples(index=False)]
    for column, name, text in _NUMBERS:
        family = GaugeMetricFamily(name, text, labels=_CELL)
        for label, value in zip(labels, ordered[column], strict=True):
            if not pd.isna(value):
                family.add_metric(label, float(value))
        yield family
    yield from _release_families(ordered.drop_duplicates(list(_WINDOW)))


def _release_families(rows: pd.DataFrame) -> Iterator[Metric]:
    """One number for each release: whose newest it is, how many hosts are in it."""
    hosts = GaugeMetricFamily(
        "pointillist_release_hosts", "accepted hosts of the newest release", labels=_WINDOW
    )
    end = GaugeMetricFamily(
        "pointillist_release_window_end_timestamp_seconds",
        "end of the window that the newest release is of",
        labels=_WINDOW,
    )
    for row in rows.to_dict("records"):
        label = [str(row["series"]), str(row["cohort"])]
        hosts.add_metric(label, float(row["n_hosts"]))
        end.add_metric(label, pd.Timestamp(row["window_start"]).timestamp() + row["window_s"])
    yield hosts
    yield end


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
