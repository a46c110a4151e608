"""The last hour of a fleet of 12,500 hosts: its error, how often it holds the truth, and how soon
a step is told.

Windows of two days are made of known shares of GPU time, which change in four ways, and of the
noise that the hosts of the shipped plan sum to; readers' own code adds them up.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from aggregator.protocol.released import Capacity, ReleasedWindow, SuppressedWindow
from aggregator.releases.period_pack import series_period, write_period, write_suppressed
from aggregator.statistics.ratios import coverage
from analytics import FleetReleases, connect
from analytics.changes import BEFORE, MINUTE_ERRORS, changes
from analytics.recent_hours import MINUTES
from analytics.rollup_files import utc
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import DEFAULT_PATH, load_plan
from simulator.engine.blocks import summed_noise
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import Simulation
from simulator.scenario import load
from wire.catalogue import UNMEASURED, Catalogue
from wire.task import Task

SECTION: Final = "kernel_mix"
PLANS: Final = {"": "default", "_second_plan": "weekly_applications"}
STEP: Final = 0.05
FAR: Final = "steps far apart"
STEP_HOURS: Final = {"steps": range(3, 48, 3), FAR: (14, 30, 45)}
"""Truth -> hours at which shares step to and fro; far apart none is among the minutes before."""
TRUTHS: Final = ("quiet", *STEP_HOURS, "outage", "new application")
SEEDS: Final = (1, 2, 3, 4)
HOURS: Final = 48
OUTAGE_HOURS: Final = (8, 20, 32, 40)
GPUS: Final = 8
PAIRS: Final = (("gemm", "attention"), ("conv", "softmax"), ("norm", "elementwise"))
"""Families between which the steps go to and fro."""
_FAMILY: Final = re.compile("gpu_time/(?!reserved)")
LENGTHS: Final = (15, 30, 60, 120)
"""Of the last minutes that are compared with those before, all of them at each minute."""
LONGEST_MINUTES: Final = 180
"""So long a step is waited for."""

Hosts = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]  # windows by cells; parts of all GPU time


def measure(kept: Parts) -> Measured:
    """Measure what is missing; give every figure."""
    errors = {
        f"{fleet}{plan}": kept.get(
            f"recent_error{fleet}{plan}", partial(error_points, file, evenly=not fleet)
        )["points"]
        for fleet in ("", "_steady")
        for plan, file in PLANS.items()
    }
    parts = [
        kept.get(f"recent_{truth.replace(' ', '_')}_{seed}", partial(play, truth, seed))
        for truth in TRUTHS
        for seed in SEEDS[: kept.scaled(len(SEEDS))]
    ]
    held = pd.DataFrame([row for part in parts for row in part["held"]])
    table = _rated(held)
    worst = max(table, key=lambda row: abs(row["percent"] - 95.0))
    seen = [minutes for part in parts for minutes in part["seen"]]
    return Measured(
        [
            Figure("recent_error_points_12500", errors[""], _POINTS, 1.04),
            Figure("recent_error_points_12500_second_plan", errors["_second_plan"], _POINTS, 0.76),
            Figure(
                "recent_error_points_12500_steady", errors["_steady"],
                f"{_POINTS}; an operator has 40 %", 1.40,
            ),
            Figure(
                "recent_error_points_12500_steady_second_plan", errors["_steady_second_plan"],
                f"{_POINTS}; an operator has 40 %", 1.02,
            ),
            Figure(
                "recent_coverage_worst_percent", worst["percent"],
                f"percent of 95 % intervals that hold the truth, of {len(table)} kinds", 95.0,
            ),
            Figure(
                "step_5_points_seen_minutes_p50", float(np.median(seen)),
                f"minutes until a step is told, median of {len(seen)}",
            ),
        ],
        {"recent_coverage": table},
    )  # fmt: skip


_POINTS: Final = "percentage points of all GPU time, standard error of the last hour's kernel mix"


def error_points(plan: str, *, evenly: bool) -> Part:
    """Give the standard error of the last hour of a quiet fleet, in points of all GPU time."""
    task = _task(plan, evenly=evenly)
    with tempfile.TemporaryDirectory() as name:
        _write(Path(name), task, 1, _shares("quiet", 60), np.full(60, task.n_max))
        with connect(name) as fleet:
            rows = fleet.recent()
        points = 100 * rows["standard_error"] / (GPUS * rows["host_s"])
    return {"points": float(points.median()), "hours": int((rows["windows"] == 60).all())}


def play(truth: str, seed: int) -> Part:
    """Release two days of a fleet whose truth is known, and read them back.

    Returns     held: how many intervals held the truth, of how many, by kind; seen: minutes after
                which each step was told
    """
    task = _task("default", evenly=True)
    shares = _shares(truth, 60 * HOURS)
    hosts = _hosts(truth, task, len(shares), np.random.default_rng([seed, 7]))
    with tempfile.TemporaryDirectory() as name:
        _write(Path(name), task, seed, shares, hosts)
        with connect(name) as fleet:
            held = list(_held(fleet, task, truth, shares, hosts))
            seen = list(_seen(fleet, task.first_window)) if truth == FAR else []
    return {"truth": truth, "held": held, "seen": seen}


def _task(plan: str, *, evenly: bool) -> Task:
    """Make the minute's task of the simulated fleet, its kernel mix alone."""
    scenario = load("steady")
    if evenly:
        scenario = scenario.with_(operators=(1.0,) * 10)
    settings = EngineSettings(noise=Noise.SEEDED)
    chosen = load_plan(DEFAULT_PATH.with_name(f"{plan}.toml"))
    tasks = Simulation(scenario, chosen, Catalogue.load(), settings).tasks
    minute = next(task for task in tasks if task.window_s == 60)
    own = tuple(spec for spec in minute.sections if spec.name == SECTION)
    return replace(minute, sections=own)


def _shares(truth: str, count: int) -> Shares:
    """Give the true shares of each minute: families by a power law with a daily swing."""
    section = Catalogue.load().section(SECTION)
    cells = list(section.cells)
    families = [at for at, cell in enumerate(cells) if _FAMILY.match(cell)]
    shares = np.zeros((count, len(cells)))
    weights = 1 / np.arange(1.0, len(families) + 1)
    swing = 0.55 + 0.05 * np.sin(2 * np.pi * np.arange(count) / 1440)
    shares[:, families] = np.outer(swing, weights / weights.sum())
    shares[:, cells.index(UNMEASURED)] = 0.1
    if truth in STEP_HOURS:
        sign = np.zeros(count)
        for number, hour in enumerate(STEP_HOURS[truth]):
            sign[60 * hour :] = (number + 1) % 2
        for one, other in _pairs(cells):
            shares[:, one] += STEP * (1 - sign)
            shares[:, other] += STEP * sign
    if truth == "new application":
        new = 0.06 * np.clip((np.arange(count) / 60 - 20) / 6, 0, 1)
        shares[:, families[-1]] += new
    shares[:, cells.index("idle")] = 1 - shares.sum(axis=1)
    return shares


def _pairs(cells: list[str]) -> list[tuple[int, int]]:
    return [
        (cells.index(f"gpu_time/{one}"), cells.index(f"gpu_time/{other}")) for one, other in PAIRS
    ]


def _hosts(truth: str, task: Task, count: int, rng: np.random.Generator) -> Hosts:
    """Give the accepted hosts of each window, 0 where it is suppressed.

    Of an outage none is released for 90 minutes, again and again, and nine of ten beside.
    """
    hosts = task.n_max - rng.integers(0, 20, size=count) * (task.n_max // 400)
    if truth == "outage":
        hosts *= rng.random(count) < 0.9
        for hour in OUTAGE_HOURS:
            hosts[60 * hour : 60 * hour + 90] = 0
    return hosts


def _write(folder: Path, task: Task, seed: int, shares: Shares, hosts: Hosts) -> None:
    """Write the windows as a Leader's packs have them."""
    catalogue, settings = Catalogue.load(), EngineSettings(noise=Noise.SEEDED, seed=seed)
    rng = np.random.default_rng([seed, 3])
    capacities = {int(n): Capacity.of([((2, GPUS),)] * int(n)) for n in np.unique(hosts)}
    place, q = task.slices()[SECTION], task.sections[0].q
    known: dict[str, list[ReleasedWindow]] = {}
    gone: list[SuppressedWindow] = []
    for at, n in enumerate(hosts.tolist()):
        start = task.first_window + 60 * at
        end_s = float(start + 90)
        if not n:
            gone.append(
                SuppressedWindow(
                    task.series, 0, start, 60, task.version, "batch_too_small", 900, task.n_min,
                    end_s,
                )
            )  # fmt: skip
            continue
        steps = shares[at] * n * GPUS * 60_000 / q
        rounding = rng.normal(size=steps.size) * np.sqrt(n / 6) * (steps > 0)
        vector = summed_noise(settings, task.series, start, task.sigma_vector_1024(), n)
        vector[:2] = n
        vector[place] += np.rint(steps + rounding).astype(np.int64)
        known.setdefault(series_period(start, 60), []).append(
            ReleasedWindow(
                bytes(32), task, 0, start, n, vector, {}, end_s, end_s, capacities[n]
            )
        )  # fmt: skip
    for windows in known.values():
        write_period(folder, catalogue, windows)
    if gone:
        write_suppressed(folder, gone)


def _held(
    fleet: FleetReleases,
    task: Task,
    truth: str,
    shares: Shares,
    hosts: Hosts,
) -> Iterator[dict[str, Any]]:
    """Count the intervals of the last hours that hold what their windows had."""
    start, cells = task.first_window, list(Catalogue.load().section(SECTION).cells)
    rows = fleet.recent(since=utc(start + 60 * MINUTES - 60))
    rows = rows[~rows["suppressed"]]
    amounts = shares * (hosts * GPUS * 60.0)[:, None]
    sums = np.cumsum(np.vstack([np.zeros(len(cells)), amounts]), axis=0)
    first = ((rows["period_start"] - utc(start)).dt.total_seconds() // 60).to_numpy(int)
    last = first + MINUTES
    at = rows["cell"].map(cells.index).to_numpy(int)
    true = sums[last, at] - sums[first, at]
    every = sums.sum(axis=1)[last] - sums.sum(axis=1)[first]
    hole = cells.index(UNMEASURED)
    whole = np.where(at == hole, every, every - (sums[last, hole] - sums[first, hole]))
    inside = {
        "value": (rows["low"] <= true) & (true <= rows["high"]),
        "share": (rows["share_low"] <= true / whole) & (true / whole <= rows["share_high"]),
    }
    after = np.zeros(len(rows), dtype=bool)
    for hour in STEP_HOURS.get(truth, ()):
        after |= (last > 60 * hour) & (last <= 60 * hour + 60)
    for kind, within in inside.items():
        for name, chosen in ((truth, ~after), ("the hour after a step", after)):
            if chosen.any():
                yield {
                    "truth": name, "of": kind, "held": int(within[chosen].sum()),
                    "intervals": int(chosen.sum()),
                }  # fmt: skip


def _seen(fleet: FleetReleases, start: int) -> Iterator[float]:
    """Give how many minutes after each step it was told first; the longest where later."""
    cells = list(Catalogue.load().section(SECTION).cells)
    for number, hour in enumerate(STEP_HOURS[FAR]):
        step = utc(start + 3600 * hour)
        found = [_told(fleet, step, minutes) for minutes in LENGTHS]
        told = pd.concat(found, ignore_index=True)
        sign = 1 if number % 2 == 0 else -1
        for pair in _pairs(cells):
            for cell, way in zip(pair, (-sign, sign), strict=True):
                rows = told[(told["cell"] == cells[cell]) & (told["change"] * way > 0)]
                yield float(rows["after"].min()) if len(rows) else LONGEST_MINUTES


def _told(fleet: FleetReleases, step: datetime, minutes: int) -> pd.DataFrame:
    """Give what `FleetReleases.change` tells at each minute after a step; `after`: which it is."""
    last, length = step + timedelta(minutes=LONGEST_MINUTES), timedelta(minutes=minutes)
    later = fleet.recent(minutes=minutes, since=step, until=last)
    before = fleet.recent(minutes=BEFORE * minutes, since=step - length, until=last - length)
    ends = before["period_start"] + pd.to_timedelta(before["period_s"], unit="s")
    # Each minute is compared by itself, as if it were another series.
    rows = changes(
        before.assign(series=ends.astype(str)),
        later.assign(series=later["period_start"].astype(str)),
        errors=MINUTE_ERRORS,
    )
    rows = rows[rows["told"]]
    return rows.assign(after=(rows["after_start"] + length - step).dt.total_seconds() / 60)


def _rated(held: pd.DataFrame) -> list[dict[str, Any]]:
    summed = held.groupby(["truth", "of"], as_index=False)[["held", "intervals"]].sum()
    found = []
    for row in summed.to_dict("records"):
        rate = coverage(int(row["held"]), int(row["intervals"]))
        found.append(
            {str(name): value for name, value in row.items()} | {"percent": 100 * rate.rate}
        )
    return found
