"""The truth beside the release: the join, the intervals' coverage, the tables of causes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aggregator.protocol.released import CoarseCounts
from aggregator.statistics.statistics import estimate
from simulator.engine.interface import EngineSettings, Noise, WindowOutcome
from simulator.engine.simulation import Simulation
from simulator.outcome.coverage import TOTAL, CoverageTally, coverage_rows, percents
from simulator.outcome.truth import TruthWriter, cause_table, truth_cells
from simulator.scenario import Faults
from tests.engine_kit import CATALOGUE, plan, scenario
from wire.catalogue import LEFT_OUT, MEASURED

SECTIONS = {
    "kernel_mix": 300_000, "kernel_mix_by_model": 200_000, "host_cpu": 200_000,
    "gpu_power": 100_000, "incidents": 200_000,
}  # fmt: skip


@cache
def outcomes(windows: int = 6, hosts: int = 120) -> tuple[WindowOutcome, ...]:
    """A few released minutes by the engine that draws the distribution alone."""
    made = scenario(hosts, windows, fidelity="noise", faults=Faults(incidents_scale=100.0))
    settings = EngineSettings(noise=Noise.SEEDED, block_hosts=60)
    simulation = Simulation(made, plan(weights=SECTIONS), CATALOGUE, settings)
    return tuple(step.outcome for step in simulation.steps())


def test_truth_stands_beside_the_estimate_of_the_same_cell() -> None:
    (outcome, *_) = outcomes()
    assert outcome.released is not None
    cells = truth_cells(outcome, CATALOGUE)
    counts = CoarseCounts.of(outcome.task, outcome.n, outcome.capacity)
    estimates = estimate(outcome.task, CATALOGUE, outcome.released, counts)
    of_hosts = [e for e in estimates if e.cell != LEFT_OUT]
    assert [(c.section, c.cell) for c in cells] == [(e.section, e.cell) for e in of_hosts]
    assert [c.released for c in cells] == [e.value for e in of_hosts]
    assert [c.bias_bound for c in cells] == [e.bias_bound for e in of_hosts]
    idle = next(c for c in cells if (c.section, c.cell) == ("kernel_mix", "idle"))
    place = outcome.task.slices()["kernel_mix"].start - 2
    raw = outcome.truth[place + CATALOGUE.section("kernel_mix").index("idle")]
    assert idle.truth == pytest.approx(raw / 1000)  # GPU-milliseconds as GPU-seconds
    assert idle.true_share == pytest.approx(idle.truth / (outcome.n * 8 * 60))


def test_truth_of_a_suppressed_window_is_shown_without_a_release(tmp_path: Path) -> None:
    (outcome, *_) = outcomes()
    lost = replace(outcome, released=None, n=0, reason="n_min", capacity=None)
    with TruthWriter(tmp_path / "truth.parquet", CATALOGUE) as writer:
        writer.add(lost)
        written = writer.add(outcome)
    frame = pd.read_parquet(tmp_path / "truth.parquet")
    assert len(frame) == 2 * len(written)
    first = frame.iloc[: len(written)]
    assert first["released"].isna().all()
    assert set(first["reason"]) == {"n_min"}
    assert (first["truth"].to_numpy() == frame.iloc[len(written) :]["truth"].to_numpy()).all()


def test_coverage_of_honest_intervals_contains_95_percent() -> None:
    tally = CoverageTally()
    for outcome in outcomes():
        tally.add(truth_cells(outcome, CATALOGUE))
    found = {one.section: one for one in tally.result()}
    total = found[TOTAL].values
    assert total.trials > 1_000
    assert total.low <= 0.96
    assert total.high >= 0.95
    shares = found["kernel_mix"].shares
    assert shares is not None
    assert shares.high >= 0.95


def test_coverage_names_every_section_and_series_worst_first() -> None:
    tally = CoverageTally()
    for outcome in outcomes():
        tally.add(truth_cells(outcome, CATALOGUE))
    (outcome, *_) = outcomes()
    low = [replace(cell, low=0.0, high=-1.0) for cell in truth_cells(outcome, CATALOGUE)]
    tally.add(replace(cell, series="day") for cell in low if cell.section == "incidents")
    total, worst, *rest = tally.result()
    assert (total.section, total.series) == (TOTAL, "")
    assert (worst.section, worst.series, worst.values.hits) == ("incidents", "day", 0)
    assert {one.section for one in rest} == set(SECTIONS)
    assert total.values.trials == sum(one.values.trials for one in (worst, *rest))
    rates = [one.values.rate for one in rest]
    assert rates == sorted(rates)
    text = percents(coverage_rows(tally.result()))
    assert text.startswith("day incidents 0.0 % of 14, ")
    assert len(text.split(", ")) == 1 + len(SECTIONS)


def test_coverage_falls_when_the_noise_is_larger_than_stated() -> None:
    tally = CoverageTally()
    for outcome in outcomes():
        assert outcome.released is not None
        more = outcome.released.copy()
        rng = np.random.default_rng(outcome.start)
        sigma = outcome.task.sigma_vector_1024() / 1024 * np.sqrt(outcome.n)
        more += np.rint(rng.normal(0, sigma)).astype(np.int64)
        tally.add(truth_cells(replace(outcome, released=more), CATALOGUE))
    (total, *_) = tally.result()
    assert total.values.high < 0.95


def test_cause_table_draws_no_number_that_is_not_told_from_zero() -> None:
    (outcome, *_) = outcomes()
    cells = truth_cells(outcome, CATALOGUE)
    table = cause_table(cells, "incidents")
    assert all(row.shown.startswith("< ") for row in table if not row.told)
    for row in [row for row in table if row.told]:
        assert row.row is not None
        assert row.row.hosts >= 2 * row.row.standard_error
        assert row.row.q_value <= 0.01


def test_cause_table_shows_what_struck_many_hosts() -> None:
    """A large fleet's table by arithmetic: 117 true hosts at a standard error of 21.5."""
    (outcome, *_) = outcomes()
    own = [one for one in truth_cells(outcome, CATALOGUE) if one.section == "incidents"]
    cells = [
        replace(cell, truth=12_000.0, released=12_000.0, standard_error=21.5)
        if cell.cell == MEASURED else replace(
            cell, truth=117.0 * (at == 0), released=120.0 * (at == 0), standard_error=21.5,
            below_noise=at != 0,
        )
        for at, cell in enumerate(own)
    ]  # fmt: skip
    table = cause_table(cells, "incidents")
    assert [row.shown for row in table if row.told] == ["120 ± 42"]
    assert all(row.told == (row.true_hosts > 0) for row in table)
    with pytest.raises(ValueError, match="no_such"):
        cause_table(cells, "no_such")
