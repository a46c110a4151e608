"""What people who look at releases wait for: a year of minute windows, and viewers of its pages.

Every window is 12,500 hosts' under the plan's own noise, which is what fills the disk. The true
sums below it are one simulated minute's, more by day than by night: noise does not compress, and
what lies below it hardly counts. Five weeks have noise of their own; each later week is one of
these moved in time, in files of its own, which no compression of a file sees.

Each viewer looks at a page with choices of their own and asks for it again every five seconds by
the tag that they hold, as a page's script does. The server is a process of its own. Once a minute a
window is released, as the Leader's store writes it, and every page is drawn again. Server and
viewers share the machine's cores.
"""

from __future__ import annotations

import asyncio
import calendar
import itertools
import math
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aggregator.protocol.released import Capacity, ReleasedWindow
from aggregator.releases import packs, window_files
from aggregator.releases.compaction import Compaction, PackRows
from aggregator.releases.period_pack import series_period, write_period
from aggregator.releases.release_files import release_path
from aggregator.releases.store import Store
from analytics import connect
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, Figure
from pointillist.plan_file import default_plan
from simulator.engine.blocks import summed_noise
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import Simulation
from simulator.engine.task_rules import capacity_of
from simulator.scenario import load
from tests.browser.server_kit import command, wait_until_read
from wire.catalogue import Catalogue
from wire.task import CHECK_WORDS, Task

FOLDER: Final = CACHE / "web" / "year"
YEAR_DAYS: Final = 365
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
GIB_GOAL: Final = 4.0
QUERY_GOAL_MS: Final = 100.0
ROLLUPS: Final = CACHE / "web" / "rollups"
QUESTION: Final = """
SELECT period_start, share, share_low, share_high FROM hours
WHERE series = 'minute' AND section = 'kernel_mix' AND cell = 'gpu_time/gemm' ORDER BY period_start
"""
"""A typical one: the share of one family by hour."""
VIEWERS: Final = 200
EVERY_S: Final = 5.0
SECONDS: Final = 180
NEW_WINDOW_S: Final = 60.0
AFTER_NEW_S: Final = 20.0
"""So long after a new window an answer counts as one of the store's change: all pages are drawn
anew meanwhile."""
P95_GOAL_MS: Final = 100.0
_SPANS: Final = ("day", "week", "eight_weeks", "hour", "year")
_MODELS: Final = ("all", "H100", "A100", "B200")
_MEASURES: Final = ("gpu_time", "launch_share")
_OTHER_PAGES: Final = ("applications", "privacy", "pipeline")
_FLEET_PAGES: Final = 4
"""Of five viewers so many look at the Fleet page."""
_DAYS: Final = 4
"""Last days that viewers choose beside the newest, a week apart."""


class Year:
    """Windows of a made-up year, the same whenever they are made."""

    def __init__(self) -> None:
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
        return self.minutes(FIRST_S + days.start * DAY_S, len(days) * DAY_S // MINUTE_S)

    def minutes(self, first_s: int, count: int) -> Iterator[ReleasedWindow]:
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


def write_year(folder: Path) -> None:
    """Write the year's packs; those that are there stay, so that a cut-off run goes on."""
    weeks = [range(first, min(first + 7, YEAR_DAYS)) for first in range(0, YEAR_DAYS, 7)]
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


def query_ms(ask: Callable[[], object]) -> float:
    ask()
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        ask()
        took.append(1000 * (time.perf_counter() - began))
    return median(took)


def stored(kept: Parts) -> Measured:
    """Write the year where it is not there yet; count its bytes and files."""

    def part() -> Part:
        write_year(FOLDER)
        files = [path for path in FOLDER.rglob("*") if path.is_file()]
        return {"bytes": sum(path.stat().st_size for path in files), "files": len(files)}

    found = kept.get("store", part)
    figures = [
        Figure("year_store_gib", found["bytes"] / 2**30, "GiB", GIB_GOAL),
        Figure("year_store_files", found["files"], "files", 400),
    ]
    return Measured(figures)


@dataclass(slots=True)
class Waits:
    """What viewers saw.

    ms          of each answer
    after_s     since the newest window was released, as each was asked
    codes       answers by code
    """

    ms: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    codes: Counter[int] = field(default_factory=Counter)
    released_s: float = -math.inf

    def p95_changing_ms(self) -> float:
        """Give the 95th percentile of the answers soon after a new window."""
        return float(np.percentile(np.array(self.ms)[np.array(self.after_s) < AFTER_NEW_S], 95))


def paths(count: int, last: date) -> list[str]:
    """Give each viewer an address of their own: first those of the newest numbers.

    last    the newest day that a viewer chooses
    """
    days = ["", *(f"&until={last - timedelta(weeks=back)}" for back in range(_DAYS))]
    fleet = (
        f"/fleet?span={span}&measure={measure}&model={model}{day}"
        for day, measure, model, span in itertools.product(days, _MEASURES, _MODELS, _SPANS)
    )
    others = (
        f"/{page}?span={span}{day}"
        for day, span, page in itertools.product(days, _SPANS, _OTHER_PAGES)
    )
    found = [
        next(fleet if at % (_FLEET_PAGES + 1) < _FLEET_PAGES else others) for at in range(count)
    ]
    assert len(set(found)) == count
    return found


@contextmanager
def growing(store: Path, seconds: float) -> Iterator[Callable[[], None]]:
    """Give what releases the minute after the newest; those minutes are gone afterwards."""
    days = [pack.days[1] for pack in packs.all_packs(store)]
    first_s = calendar.timegm((max(days) + timedelta(days=1)).timetuple())
    windows = Year().minutes(first_s, int(seconds / NEW_WINDOW_S) + 2)
    with tempfile.TemporaryDirectory(dir=CACHE) as own:
        with Store(Path(own) / "leader.duckdb", store, Catalogue.load()) as opened:
            yield lambda: opened.write(next(windows))
        for single in list(window_files.all_singles(store)):
            single.path.unlink()


async def viewers(
    address: str, release: Callable[[], None], looked_at: Sequence[str], seconds: float
) -> Waits:
    """Let viewers look for a time at pages that were opened before, spread over a round.

    release     makes the store grow by a window
    looked_at   the address of each viewer
    """
    waits = Waits()
    count = len(looked_at)
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
        for path in looked_at:
            (await client.get(path)).raise_for_status()
        until_s = time.monotonic() + seconds
        looking = (_viewer(client, path, until_s, waits) for path in looked_at)
        await asyncio.gather(_grow(release, until_s, waits), *looking)
    return waits


async def _grow(release: Callable[[], None], until_s: float, waits: Waits) -> None:
    while time.monotonic() < until_s:
        await asyncio.to_thread(release)
        waits.released_s = time.monotonic()
        await asyncio.sleep(min(NEW_WINDOW_S, max(until_s - time.monotonic(), 0)))


async def _viewer(client: httpx.AsyncClient, path: str, until_s: float, waits: Waits) -> None:
    tag = ""
    await asyncio.sleep(random.uniform(0, EVERY_S))
    while (began := time.monotonic()) < until_s:
        answer = await client.get(path, headers={"if-none-match": tag})
        waits.ms.append(1e3 * (time.monotonic() - began))
        waits.after_s.append(began - waits.released_s)
        waits.codes[answer.status_code] += 1
        tag = answer.headers.get("etag", tag)
        await asyncio.sleep(max(EVERY_S - (time.monotonic() - began), 0))


def look(store: Path, rollups: Path, seconds: float) -> Part:
    """Serve a store to viewers; give percentiles of their waits, and CPU."""
    with connect(store, rollups=rollups) as fleet:
        query = query_ms(lambda: fleet.sql(QUESTION))
        last = fleet.newest("family", "day")["period_start"].max().date()
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        # A copy: roll-ups remember windows that are gone, and the next run releases them again.
        shutil.copytree(rollups, Path(folder) / "rollups")
        with growing(store, seconds) as release, command(store, Path(folder)) as (address, process):
            wait_until_read(address)
            server = psutil.Process(process.pid)
            asyncio.run(viewers(address, lambda: None, paths(VIEWERS, last), 0.0))
            before = server.cpu_times()
            waits = asyncio.run(viewers(address, release, paths(VIEWERS, last), seconds))
            after = server.cpu_times()
            resident = server.memory_info().rss
    p50, p95 = np.percentile(waits.ms, (50, 95))
    wrong = sum(number for code, number in waits.codes.items() if code not in {200, 304})
    used_s = after.user + after.system - before.user - before.system
    return {
        "p50_ms": float(p50), "p95_ms": float(p95), "answers": len(waits.ms),
        "p95_changing_ms": waits.p95_changing_ms(),
        "most_ms": max(waits.ms), "redrawn": waits.codes[200], "wrong": wrong,
        "server_core_percent": 100 * used_s / seconds,
        "server_mib": resident / 2**20, "query_ms": query,
    }  # fmt: skip


def load_figures(part: Part) -> list[Figure]:
    """Give what `look` found as figures."""
    answers, of_core = part["answers"], "% of one core"
    soon = f"ms, of answers in the {AFTER_NEW_S:g} s after a new window"
    return [
        Figure("fleet_page_p50_ms_200_viewers", part["p50_ms"], "ms"),
        Figure("fleet_page_p95_ms_200_viewers", part["p95_ms"], "ms", P95_GOAL_MS),
        Figure("fleet_page_p95_ms_200_viewers_changing", part["p95_changing_ms"], soon),
        Figure("fleet_page_longest_ms_200_viewers", part["most_ms"], "ms"),
        Figure("viewers_answers", answers, "answers"),
        Figure("viewers_answers_refused", part["wrong"], "answers", 0.0),
        Figure("viewers_pages_new_percent", 100 * part["redrawn"] / answers, "% of answers"),
        Figure("web_server_core_percent", part["server_core_percent"], of_core),
        Figure("web_server_mib", part["server_mib"], "MiB"),
        Figure("year_query_ms", part["query_ms"], "ms", QUERY_GOAL_MS),
    ]


def viewed(kept: Parts) -> Measured:
    """Measure on the year of minute windows, writing it where it is not there yet."""

    def part() -> Part:
        write_year(FOLDER)
        return look(FOLDER, ROLLUPS, kept.scaled(SECONDS, 10))

    return Measured(load_figures(kept.get("load", part)))
