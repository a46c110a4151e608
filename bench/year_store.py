"""A year of minute windows of the shipped plan at full size: its bytes, its files, its queries.

Every window is 12,500 hosts' under the plan's own noise, which is what fills the disk. The true
sums below it are one simulated minute's, more by day than by night: noise does not compress, and
what lies below it hardly counts. Five weeks have noise of their own; each later week is one of
these moved in time, in files of its own, which no compression of a file sees.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aggregator.protocol.released import Capacity, ReleasedWindow
from aggregator.releases import packs
from aggregator.releases.compaction import Compaction, PackRows
from aggregator.releases.period_pack import series_period, write_period
from aggregator.releases.release_files import release_path
from aggregator.releases.releases import query
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, Figure
from pointillist.plan_file import default_plan
from pointillist.play.setup import Changes, Setup
from pointillist.play.weeks import SCENARIO, StorePlayer
from simulator.engine.engine_port import EngineSettings, Noise
from simulator.engine.randomness import summed_noise
from simulator.engine.simulation import Simulation
from simulator.engine.task_rules import capacity_of
from simulator.scenario import load
from wire.catalogue import Catalogue
from wire.task import CHECK_WORDS, Task

FOLDER: Final = CACHE / "web" / "year"
YEAR_DAYS: Final = 365
DAYS: Final = int(os.environ.get("DAYS", YEAR_DAYS))
"""Fewer than a year's are said in each figure's unit, and sizes are then a year's by proportion."""
OWN_WEEKS: Final = 5
"""Weeks with noise of their own: four times as long in the making as a moved one. The longest file
of what is made of them, the roll-ups' month, must not hold a week twice."""
FIRST_S: Final = 1_767_571_200
"""Monday, 2026-01-05."""
MINUTE_S: Final = 60
DAY_S: Final = 86_400
SPREAD_HOSTS: Final = 120
"""So many fewer than all report, at most."""
LATE: Final = (40, 90)
"""Reports of a window that come too late, from and below."""
TIMES: Final = 5
PLAYED_HOURS: Final = 168

GIB_GOAL: Final = 4.0
QUERY_GOAL_MS: Final = 100.0
QUESTION: Final = """
SELECT date_trunc('hour', window_start) AS hour, avg(share) AS share FROM released
WHERE series = 'minute' AND section = 'kernel_mix' AND cell = 'gpu_time/gemm'
GROUP BY hour ORDER BY hour
"""
"""A typical one: the share of one family by hour."""


class Year:
    """Windows of a made-up year, the same whenever they are made."""

    def __init__(self) -> None:
        """Play one minute of the shipped fleet."""
        self.catalogue = Catalogue.load()
        self._settings = EngineSettings(noise=Noise.SEEDED)
        silent = EngineSettings(noise=Noise.NONE)
        simulation = Simulation(load("steady"), default_plan(), self.catalogue, silent)
        step = next(step for step in simulation.steps() if step.due.series == "minute")
        self.task: Task = step.outcome.task
        if step.outcome.released is None:
            raise AssertionError(f"expected a release, got {step.outcome.reason}")
        self._sums, self._hosts = step.outcome.released, step.outcome.n
        self._capacity: Capacity = capacity_of(simulation.model.inventory, step.state.reporting)

    def windows(self, days: range) -> Iterator[ReleasedWindow]:
        """Give the windows of some days, in order."""
        for at in range(days.start * DAY_S, days.stop * DAY_S, MINUTE_S):
            yield self._window(FIRST_S + at)

    def minutes(self, first_s: int, count: int) -> Iterator[ReleasedWindow]:
        """Give windows from a moment on."""
        return (self._window(first_s + at * MINUTE_S) for at in range(count))

    def _window(self, start_s: int) -> ReleasedWindow:
        rng = np.random.default_rng(start_s)
        n = self._hosts - int(rng.integers(SPREAD_HOSTS))
        by_day = 1 + 0.15 * math.sin(2 * math.pi * (start_s % DAY_S) / DAY_S)
        noise = summed_noise(
            self._settings, self.task.series, start_s, self.task.sigma_vector_1024(), n
        )
        vector = np.rint(self._sums * (n / self._hosts * by_day)).astype(np.int64) + noise
        vector[:CHECK_WORDS] = n
        closed_s = float(start_s + MINUTE_S + self.task.lateness_s)
        return ReleasedWindow(
            b"", self.task, 0, start_s, n, vector, {"window_late": int(rng.integers(*LATE))},
            closed_s, closed_s + round(float(rng.random()), 6), self._capacity,
        )  # fmt: skip


def write_year(folder: Path, days: int = DAYS) -> None:
    """Write the year's packs; those that are there stay, so that a cut-off run goes on."""
    weeks = [range(first, min(first + 7, days)) for first in range(0, days, 7)]
    missing = [week for week in weeks if _pack_of(folder, week) is None]
    year = Year() if missing else None
    for week in missing:
        before = range(week.start - 7 * OWN_WEEKS, week.stop - 7 * OWN_WEEKS)
        played = _pack_of(folder, before) if len(week) == 7 else None
        if played is not None:
            _write_moved(folder, played, timedelta(weeks=OWN_WEEKS), _period(week))
        elif year is not None:
            write_period(folder, year.catalogue, list(year.windows(week)))
        print(f"wrote {_period(week)}", flush=True)


def _period(week: range) -> str:
    return series_period(FIRST_S + week.start * DAY_S, MINUTE_S)


def _pack_of(folder: Path, week: range) -> packs.Pack | None:
    return packs.active_pack(folder, "minute", _period(week))


def _write_moved(folder: Path, pack: packs.Pack, by: timedelta, period: str) -> None:
    """Write the windows of a pack once more, at a later time."""
    members = _moved(pq.read_table(pack.path / packs.MEMBERS, partitioning=None), by)
    starts = zip(members["cohort"].to_pylist(), members["window_start"].to_pylist(), strict=True)
    names = [release_path(folder, pack.series, cohort, start).name for cohort, start in starts]
    members = members.set_column(0, "name", pa.array(names))
    with pq.ParquetFile(pack.path / packs.CELLS) as file:
        groups = (_moved(file.read_row_group(at), by) for at in range(file.num_row_groups))
        Compaction(folder).add("", pack.series, period, PackRows(members, cells=groups))


def _moved(rows: pa.Table, by: timedelta) -> pa.Table:
    for at, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            rows = rows.set_column(at, column, pc.add(rows[at], pa.scalar(by, pa.duration("us"))))
    return rows


def on_days(unit: str) -> str:
    """Say beside a unit how much of the year was there."""
    return unit if DAYS == YEAR_DAYS else f"{unit}, from {DAYS} days"


def figures_of(folder: Path) -> list[Figure]:
    """Measure a written year, or the days of it that are there."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    years = DAYS / YEAR_DAYS
    size = sum(path.stat().st_size for path in files) / years
    sql = "SELECT count(DISTINCT cell) AS n FROM (SELECT section || cell AS cell FROM released)"
    cells = query(sql.replace("FROM released", f"FROM released WHERE {_first_hour()}"), folder).n[0]
    values = float(cells) * YEAR_DAYS * DAY_S / MINUTE_S
    return [
        Figure("year_store_gib", size / 2**30, on_days("GiB"), GIB_GOAL),
        Figure("year_store_files", len(files) / years, on_days("files"), 400),
        Figure("year_store_values", values, "values"),
        Figure("year_store_bytes_per_value", size / values, "B"),
        Figure(
            "year_query_without_rollups_ms",
            query_ms(lambda: query(QUESTION, folder)),
            on_days("ms"),
        ),
    ]


def query_ms(ask: Callable[[], object]) -> float:
    """Median time of a question, asked once before."""
    ask()
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        ask()
        took.append(1000 * (time.perf_counter() - began))
    return median(took)


def measure(kept: Parts) -> Measured:
    """Write the year where it is not there yet, and measure it."""

    def part() -> Part:
        write_year(FOLDER)
        return {"figures": [[f.name, f.value, f.unit, f.goal] for f in figures_of(FOLDER)]}

    found = kept.get("store", part)
    played = kept.get("simulated_weeks", _play_a_week)
    return Measured(
        [
            *(Figure(*row) for row in found["figures"]),
            Figure("simulated_weeks_per_minute", played["simulated_weeks_per_minute"], "weeks"),
            Figure("simulated_weeks_hosts", played["hosts"], "hosts"),
        ]
    )


def _play_a_week() -> Part:
    """Write the first week of the practice store at its full size."""
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        setup = Setup.make(SCENARIO, None, Changes(hours=PLAYED_HOURS))
        processes = len(os.sched_getaffinity(0))
        return StorePlayer(setup, Path(folder), processes).play(print)


def _first_hour() -> str:
    return f"window_start = make_timestamp({FIRST_S} * 1000000::BIGINT)"


if __name__ == "__main__":
    if sys.argv[1:] == ["--remove"]:
        shutil.rmtree(FOLDER, ignore_errors=True)
    else:
        write_year(FOLDER)
        for figure in figures_of(FOLDER):
            print(f"{figure.name:40} {figure.value:16.3f} {figure.unit}")
