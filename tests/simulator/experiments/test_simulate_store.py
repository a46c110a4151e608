"""`pointillist simulate --store`: the folder that a Leader would have, and it says what it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from aggregator.protocol.released import CoarseCounts
from aggregator.releases import packs, window_files
from aggregator.releases.release_files import NAME, MarkUnreadable, read_mark
from aggregator.releases.releases import query, read_releases, read_windows
from aggregator.statistics.statistics import estimate
from pointillist.cli import causes_command, simulate
from pointillist.cli import query as query_command
from privacy.plan import Plan, PlannedSection, PlannedTask
from simulator.engine.simulation import Simulation
from simulator.scenario import Dropout, Scenario
from simulator.store_fill import AnotherStore, StoreFill
from tests.engine_kit import CATALOGUE, SEEDED

SUNDAY_S = 1_771_192_800
"""2026-02-15, 22:00 UTC: two hours before another ISO week."""
PLAN = Plan(
    "test", "masked", 2_000_000, 1_000, 60, 48, 6, 3,
    (
        PlannedTask(
            "minute", 60, 30, 21_600,
            (PlannedSection("host_cpu", 300_000), PlannedSection("kernel_mix", 300_000)),
        ),
        PlannedTask("hour", 3_600, 60, 21_600, (PlannedSection("incidents", 300_000),)),
    ),
)  # fmt: skip


def simulation(**changes: Any) -> Simulation:
    made = Scenario(
        name="small", seed=7, hosts=60, start_s=SUNDAY_S, duration_s=4 * 3600,
        operators=(1.0, 1.0, 1.0, 1.0, 1.0), dropout=Dropout(share=0.15, late_share=0.05),
    )  # fmt: skip
    return Simulation(replace(made, **changes), PLAN, CATALOGUE, SEEDED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = tmp_path_factory.mktemp("store") / "releases"
    list(StoreFill(simulation(), whole, 4 / 168).steps())
    return whole


def test_every_window_is_released_or_suppressed_and_packed(folder: Path) -> None:
    ends = read_windows(folder)
    assert ends.groupby("series").size().to_dict() == {"hour": 4, "minute": 240}
    assert set(ends.outcome) == {"released", "suppressed"}
    assert set(ends.reason.dropna()) == {"n_min"}
    assert list(window_files.all_singles(folder)) == []
    assert {(p.series, p.period) for p in packs.all_packs(folder)} <= {
        (series, week) for series in ("minute", "hour") for week in ("2026-W07", "2026-W08")
    }
    assert set(read_releases(folder).domain) == {"demo"}
    counted = query("SELECT count(*) AS n FROM causes", folder).n[0]
    assert (counted > 0) == (ends[ends.series == "hour"].outcome == "released").any()


def test_numbers_are_those_of_the_windows_that_were_played(folder: Path) -> None:
    played = [one for _, row in simulation().apart(lambda _: False) for one in row]
    first = next(one for one in played if one.released is not None)
    assert first.released is not None
    counts = CoarseCounts.of(first.task, first.n, first.capacity)
    cells = estimate(first.task, CATALOGUE, first.released, counts)
    found = read_releases(
        folder, series=first.task.series, since=first.start, until=first.start + 1
    )
    shown = {(row.section, row.cell): row.value for row in found.itertuples()}
    assert shown == {(cell.section, cell.cell): cell.value for cell in cells}


def test_a_run_that_was_cut_off_goes_on_to_the_same_store(folder: Path, tmp_path: Path) -> None:
    for _ in range(3):  # each is cut off within the second week
        for step in StoreFill(simulation(), tmp_path, 4 / 168).steps():
            if step.due.start_s > SUNDAY_S + 2 * 3600:
                break
    mark = read_mark(tmp_path)
    assert mark is not None
    assert mark.done == ("minute/2026-W07", "hour/2026-W07")
    list(StoreFill(simulation(), tmp_path, 4 / 168).steps())
    list(StoreFill(simulation(), tmp_path, 4 / 168).steps())
    for view in ("released", "windows", "causes"):
        sql = f"SELECT * FROM {view} ORDER BY ALL"
        pd.testing.assert_frame_equal(query(sql, tmp_path), query(sql, folder))


def test_a_folder_of_another_run_or_of_a_fleet_is_left_alone(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AnotherStore, match="60 hosts of the scenario small, seed 7"):
        StoreFill(simulation(seed=8), folder, 4 / 168)
    (tmp_path / "series=minute").mkdir()
    with pytest.raises(AnotherStore, match="new or empty folder"):
        StoreFill(simulation(), tmp_path, 4 / 168)


def test_every_reader_says_that_it_is_simulated(folder: Path) -> None:
    runner = CliRunner()
    asked = [
        (query_command.app, ["--folder", str(folder), "SELECT 1 AS one FROM windows LIMIT 1"]),
        (query_command.app, ["--folder", str(folder), "--check"]),
        (causes_command.app, ["--folder", str(folder)]),
        (query_command.store_app, ["show", str(folder)]),
    ]
    for app, arguments in asked:
        said = runner.invoke(app, arguments).stderr
        assert "simulated: 60 hosts of the scenario small, seed 7, fidelity noise" in said


@pytest.mark.parametrize(
    "content", ["", "[]", "null", '{"format": 2}', '{"format": 1, "hosts": 3}', "[" * 10_000]
)
def test_a_mark_that_nobody_understands_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(MarkUnreadable, match=NAME):
        read_mark(tmp_path)


def test_simulate_command_fills_a_store_and_says_how_fast(tmp_path: Path) -> None:
    store = tmp_path / "practice"
    arguments = ["steady", "--hosts", "60", "--weeks", "0.002", "--store", str(store), "--json"]
    done = CliRunner().invoke(simulate.app, [*arguments, "--processes", "1"])
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["windows_released"] + summary["windows_suppressed"] == 20
    assert summary["simulated_weeks_per_minute"] > 0
    assert summary["fidelity"] == "noise"
    shown = CliRunner().invoke(query_command.store_app, ["show", str(store), "--json"])
    assert sum(row["packed_windows"] for row in json.loads(shown.stdout)) == 20


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--out", "x"], "expected no --out"),
        (["--fidelity", "exact"], "expected --fidelity noise"),
        (["--hours", "1"], "--weeks and --hours exclude each other"),
    ],
)
def test_simulate_command_refuses_what_a_store_does_not_go_with(
    more: list[str], why: str, tmp_path: Path
) -> None:
    arguments = ["steady", "--weeks", "1", "--store", str(tmp_path), *more]
    done = CliRunner().invoke(simulate.app, arguments)
    assert done.exception is not None
    assert why in str(done.exception)
