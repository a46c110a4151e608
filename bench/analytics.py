"""How often roll-ups hold the truth: fleets whose truth is known, added up by hour, day and week.

Windows are released of each fleet, some of them taken out as if suppressed, and the true sums of
those that are left are compared with the intervals of their roll-ups.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from aggregator.statistics.ratios import coverage
from analytics import RollupPeriod
from analytics.changes import changes
from analytics.release_source import FolderSource
from analytics.rollup_files import utc
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import DEFAULT_PATH, load_plan
from privacy.plan import Plan
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import Simulation, release_of
from simulator.outcome.truth import truth_cells
from simulator.scenario import load
from tests.analytics.rollup_kit import write_releases
from wire.catalogue import UNMEASURED, Catalogue

NOMINAL: Final = 95.0
LOST_OF: Final = 9
"""Of so many windows of a minute or an hour one is taken out."""
SEEDS: Final = (1, 2, 3)
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet and what is released of it.

    plan        file beside the shipped ones
    longest_s   windows of the plan's tasks that are played: from `shortest_s` on
    periods     whose roll-ups are compared
    step_s      between the model's ticks; None: the scenario's
    """

    name: str
    plan: str
    shortest_s: int
    longest_s: int
    hosts: int
    hours: int
    periods: tuple[RollupPeriod, ...]
    step_s: int | None = None


FLEETS: Final = (
    Fleet("minutes", "default", 60, 60, 400, 6, (RollupPeriod.HOUR,)),
    Fleet(
        "hours", "operator_500", 3600, 3600, 500, 14 * 24, (RollupPeriod.DAY, RollupPeriod.WEEK)
    ),
    Fleet(
        "events", "default", DAY_S, 7 * DAY_S, 1_500, 8 * 7 * 24,
        (RollupPeriod.WEEK, RollupPeriod.EIGHT_WEEKS), 3600,
    ),
)  # fmt: skip


def measure(kept: Parts) -> Measured:
    """Measure what is missing; give every figure."""
    parts = [
        kept.get(f"rollups_{fleet.name}_{seed}", partial(play, fleet, seed))
        for fleet in FLEETS
        for seed in SEEDS
    ]
    rows = [row for part in parts for row in part["rows"]]
    return Measured(figures_of(rows), {"rollups": _table(pd.DataFrame(rows))})


def play(fleet: Fleet, seed: int) -> Part:
    """Release a fleet's windows and count the intervals of their roll-ups that hold the truth.

    Returns     rows: for each section, period and kind of interval, how many held of how many
    """
    truth: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for outcome, cells in _windows(fleet, seed):
            write_releases(folder, [release_of(outcome)])
            truth += [
                {
                    "series": cell.series, "start": utc(outcome.start), "section": cell.section,
                    "cell": cell.cell, "truth": cell.truth, "reporting": outcome.reporting,
                }
                for cell in cells
            ]  # fmt: skip
        source = FolderSource(folder)
        true = pd.DataFrame(truth)
        rows = [row for period in fleet.periods for row in _compared(source, period, true)]
        source.close()
    return {"rows": rows}


def _windows(fleet: Fleet, seed: int) -> Iterator[tuple[Any, Any]]:
    """Give the released windows of a fleet that are not taken out, with their true cells."""
    given = load("steady").scaled(hosts=fleet.hosts)
    scenario = given.with_(
        seed=seed, duration_s=3600 * fleet.hours, fidelity="noise", operators=(1.0,) * 10,
        start_s=given.start_s // (56 * DAY_S) * 56 * DAY_S, step_s=fleet.step_s or given.step_s,
    )  # fmt: skip
    catalogue = Catalogue.load()
    settings = EngineSettings(noise=Noise.SEEDED, seed=seed)
    simulation = Simulation(scenario, _plan(fleet), catalogue, settings)
    for step in simulation.steps():
        number = step.due.start_s // step.due.window_s
        lost = step.due.window_s < DAY_S and number % LOST_OF == 0
        if step.outcome.released is not None and not lost:
            yield step.outcome, truth_cells(step.outcome, catalogue)


def _plan(fleet: Fleet) -> Plan:
    plan = load_plan(DEFAULT_PATH.with_name(f"{fleet.plan}.toml"))
    chosen = [t for t in plan.tasks if fleet.shortest_s <= t.window_s <= fleet.longest_s]
    return replace(plan, tasks=tuple(chosen))


def _compared(
    source: FolderSource, period: RollupPeriod, truth: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Count which intervals of values, shares and changes hold the truth."""
    cells = _with_truth(source.cells(period, None), truth, period)
    held = {
        "value": cells["truth"].between(cells["low"], cells["high"]),
        "share": cells["true_share"].between(cells["share_low"], cells["share_high"])[
            cells["share"].notna() & cells["true_share"].notna()
        ],
        "change": _changes_held(cells),
    }
    for kind, inside in held.items():
        sections = cells["section"] if kind != "change" else inside.index.to_series()
        for section, within in inside.groupby(sections.reindex(inside.index).to_numpy()):
            yield {
                "section": str(section), "period": period.value, "of": kind,
                "held": int(within.sum()), "intervals": len(within),
            }  # fmt: skip


def _with_truth(cells: pd.DataFrame, truth: pd.DataFrame, period: RollupPeriod) -> pd.DataFrame:
    """Add `truth`, in the unit of value, and `true_share` to roll-ups."""
    keys = ["series", "period_start", "section", "cell"]
    placed = truth.assign(period_start=truth["start"].map(period.start))
    sums = placed.groupby(keys, as_index=False)[["truth", "reporting"]].sum()
    rows = cells.merge(sums, on=keys)
    measured = rows["truth"].where(rows["name"] != UNMEASURED, 0.0)
    group = [rows[name] for name in ("series", "period_start", "section", "model")]
    wholes = measured.groupby(group).transform("sum")
    wholes += rows["truth"].where(rows["name"] == UNMEASURED, 0.0)
    wholes = wholes.where(~rows["kind"].isin(("mean", "indicators")), rows["reporting"])
    # Full scale of a host: the whole of a mean is exact.
    full = rows["whole"] / rows["host_s"]
    wholes = wholes.where(rows["kind"] != "mean", rows["reporting"] * full)
    rows["true_share"] = np.where(wholes > 0, rows["truth"] / wholes.where(wholes > 0, 1), np.nan)
    per = rows["reporting"].where(rows["kind"] == "mean", 1)
    return rows.assign(truth=rows["truth"] / per)


def _changes_held(cells: pd.DataFrame) -> pd.Series:
    """Whether the intervals of changes from each period to the next hold the true ones."""
    found = [pd.Series([], dtype=bool)]
    starts = sorted(cells["period_start"].unique())
    of = cells["true_share"].where(cells["kind"] != "mean", cells["truth"])
    known = cells.assign(of=of)
    for first, second in pairwise(starts):
        before, after = (known[known["period_start"] == start] for start in (first, second))
        rows = changes(before, after)
        keys = ["series", "section", "cell"]
        true = after.set_index(keys)["of"] - before.set_index(keys)["of"]
        rows = rows[rows["change"].notna()].set_index(keys)
        expected = true.reindex(rows.index)
        inside = expected.between(rows["low"], rows["high"])[expected.notna()]
        found.append(pd.Series(inside.to_numpy(), index=inside.index.get_level_values("section")))
    return pd.concat(found)


def _table(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Add up over seeds, the worst first, each rate with its 99 % bounds."""
    summed = rows.groupby(["of", "period", "section"], as_index=False)[["held", "intervals"]].sum()
    found = [_rated(row) for row in summed.to_dict("records")]
    return sorted(found, key=lambda row: (row["of"], row["percent"]))


def _rated(row: dict[Any, Any]) -> dict[str, Any]:
    rate = coverage(int(row["held"]), int(row["intervals"]))
    bounds = {"percent": 100 * rate.rate, "low": 100 * rate.low, "high": 100 * rate.high}
    return {str(name): value for name, value in row.items()} | bounds


def figures_of(counted: Sequence[Part]) -> list[Figure]:
    """Give the rates of all that was counted; `counted` as `play` has its rows."""
    rows = pd.DataFrame(list(counted))
    sums = rows.groupby("of")[["held", "intervals"]].sum()
    percent = {str(of): 100 * held / count for of, held, count in sums.itertuples()}
    unit = "percent of 95 % intervals of hours, days, weeks and eight weeks"
    return [
        Figure("rollup_interval_coverage_percent", percent["value"], unit, NOMINAL),
        Figure("rollup_share_coverage_percent", percent["share"], f"{unit}, of shares", NOMINAL),
        Figure("rollup_change_coverage_percent", percent["change"], f"{unit}, of changes", NOMINAL),
        Figure(
            "rollup_intervals",
            sum(row["intervals"] for row in counted if row["of"] == "value"),
            "intervals of values",
        ),
    ]
