"""Rows that are not there: which cells of a family are significant, and how often wrongly."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import binomtest, false_discovery_control, norm

from aggregator.releases.releases import query, read_causes, read_releases
from aggregator.releases.store import Store
from aggregator.statistics.causes import CauseWindow, cause_table
from aggregator.statistics.correction import Reported
from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE, is_significant, q_values
from pointillist.cli.causes_command import drawn, remarks
from pointillist.play.stage import Summary, cell_table, mix_table, print_summary, share, told_line
from simulator.cell_view import CellView, judged, ranked
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, noise, true_steps, window
from tests.diagnosis.causes.causes_kit import MODEL, detector
from wire.catalogue import NO_CLASSES

N = 12_000
DRAWS = 4_000
MIX = np.array([40.8, 19.5, 17.5, 8.0, 7.5, 2.1, 1.8, 1.1, 0.8, 0.35, 0.14, 0.14, *[0.0] * 56])
"""Percent of GPU time by cell of the demo's mean, whose standard error is 0.326."""
MIX_ERROR = 0.326


@pytest.mark.parametrize("cells", [1, 2, 13, 68])
@pytest.mark.parametrize(("independent", "method"), [(True, "bh"), (False, "by")])
def test_q_values_are_those_of_scipy(
    cells: int, independent: bool, method: Literal["bh", "by"]
) -> None:
    rng = np.random.default_rng(cells)
    values = rng.normal(size=cells) + 4 * (rng.random(cells) < 0.3)
    errors = rng.uniform(0.5, 2, cells)
    values[-1] = values[0]
    errors[-1] = errors[0]
    p = norm.sf(values / errors)
    expected = false_discovery_control(p, method=method) if cells > 1 else p
    found = q_values(values, errors, independent=independent)
    assert found == pytest.approx(expected, rel=1e-9)


def test_q_value_of_a_cell_without_an_error_is_its_sign() -> None:
    found = q_values(np.array([3.0, 0.0, -3.0]), np.zeros(3))
    assert found.tolist() == [0.0, 1.0, 1.0]
    assert q_values(np.array([]), np.array([])).size == 0


def told(truth: np.ndarray, error: float, seed: int) -> np.ndarray:
    """Which cells are significant in each of many releases: bool[releases, cells]."""
    released = truth + np.random.default_rng(seed).normal(0, error, (DRAWS, len(truth)))
    errors = np.full(len(truth), error)
    return np.array([q_values(row, errors) <= FALSE_DISCOVERY_RATE for row in released])


def _views(row: np.ndarray, error: float) -> list[CellView]:
    return [CellView(str(at), float(value), error, 0.0) for at, value in enumerate(row)]


def test_family_of_empty_cells_shows_a_row_as_seldom_as_the_rate_says() -> None:
    shown = told(np.zeros(68), 1.0, seed=1).any(axis=1)
    bounds = binomtest(int(shown.sum()), DRAWS).proportion_ci(0.999)
    assert bounds.low <= FALSE_DISCOVERY_RATE <= bounds.high


def test_rows_told_from_zero_are_falsely_so_at_most_at_the_rate_and_true_ones_stand() -> None:
    found, true = told(MIX, MIX_ERROR, seed=2), MIX > 0
    false_share = found[:, ~true].sum(axis=1) / np.maximum(found.sum(axis=1), 1)
    error = false_share.std() / np.sqrt(DRAWS)
    assert false_share.mean() <= FALSE_DISCOVERY_RATE + 3 * error
    # Six families of two per cent and more are seen nearly always, and none is lost to the rule.
    assert found[:, MIX >= 2].mean(axis=0).min() > 0.99
    assert found[:, MIX >= 1.8].mean(axis=0).min() > 0.95


def test_cell_is_judged_among_those_beside_it() -> None:
    alone = judged([CellView("one", 2.6, 1.0, 0.0)])
    among = judged([CellView("one", 2.6, 1.0, 0.0), *_views(np.zeros(67), 1.0)])
    assert alone[0].told
    assert not among[0].told
    assert not CellView("unjudged", 9.0, 1.0, 0.0).told


def released(root: Path) -> Path:
    task = make_task()
    rng = np.random.default_rng(5)
    with Store(
        root / "leader" / "store.duckdb", root / "releases", CATALOGUE, detector=detector(),
        agents_model=MODEL,
    ) as store:  # fmt: skip
        for start in (0, 60):
            amounts = {("incidents", "disk_io"): 900.0 * 64, ("incidents", "unknown"): 130.0 * 64}
            drawn_noise = noise(task, N, rng)
            drawn_noise[:2] = 0
            store.write(window(task, true_steps(task, N, amounts) + drawn_noise, N, start))
    return root / "releases"


def test_views_have_the_q_values_of_each_section_of_each_release(tmp_path: Path) -> None:
    folder = released(tmp_path)
    families = ["series", "cohort", "window_start", "section"]
    rows = read_releases(folder)
    for _, family in rows.groupby([*families, rows.cell.where(rows.cell.isin(NO_CLASSES), "")]):
        expected = q_values(family.value.to_numpy(), family.standard_error.to_numpy())
        assert family.q_value.to_numpy() == pytest.approx(expected, rel=1e-12)
    for _, family in read_causes(folder).groupby(families):
        assert family.corrected.all()
        expected = q_values(
            family.hosts.to_numpy(), family.standard_error.to_numpy(), independent=False
        )
        assert family.q_value.to_numpy() == pytest.approx(expected, rel=1e-9)
    one = query(
        "SELECT q_value FROM releases WHERE cell = 'disk_io' AND window_start = '1970-01-01'",
        folder,
    )
    chosen = rows[(rows.cell == "disk_io") & (rows.window_start == pd.Timestamp(0))]
    assert one.q_value.tolist() == chosen.q_value.tolist()  # a filter makes no smaller family


def test_latest_leaves_empty_what_is_not_told_from_zero(tmp_path: Path) -> None:
    latest = query("SELECT * FROM latest", released(tmp_path))
    told_rows = latest.q_value.map(is_significant)
    assert latest[told_rows].value.notna().all()
    assert latest[~told_rows].value.isna().all()
    assert "disk_io" in set(latest[told_rows].cell)
    passing = latest[~latest.below_noise & ~told_rows]
    assert len(passing) > 0  # two standard errors alone would have drawn these


GHOST = CellView("launch_share/codec", 0.0099, 0.0033, 0.0)
"""Three standard errors above zero, among 68 cells, and nothing truly there."""
SCREEN = judged(
    [
        CellView("gpu_time/gemm", 0.19, 0.0033, 0.193),
        CellView("gpu_time/norm", 0.004, 0.0033, 0.003),
        GHOST,
        *(CellView(f"launch_share/empty_{n}", 0.0, 0.0033, 0.0) for n in range(65)),
    ]
)


def test_screens_draw_no_number_of_what_is_not_told_from_zero() -> None:
    text = io.StringIO()
    console = Console(file=text, width=100)
    console.print(mix_table(SCREEN, SCREEN, 100))
    shown = ranked(SCREEN)
    table = cell_table("GPU time", shown, lambda value: f"{share(value)} %")
    print_summary(console, Summary(tables=(table, told_line(shown, SCREEN))))
    lines = text.getvalue().splitlines()
    assert not any("codec" in line for line in lines)
    (row,) = [line for line in lines if line.startswith("norm") and "%" in line]
    assert "< 1.05 %" in row
    assert "1 of 68 cells significant; of such rows at most 1 % are expected to be empty" in lines


def test_root_causes_that_are_not_told_from_zero_are_named_with_what_they_are_less_than() -> None:
    causes = tuple(CATALOGUE.section("hardware_faults").cells)[:17]
    hosts = np.array([115.0, 37.0, *[0.0] * 14, -20.0])
    reported = Reported(1_459, hosts, np.full(17, 15.0))
    table = cause_table(
        CauseWindow("eight_weeks", 0, 0, 4_838_400, "hardware_faults", causes, reported)
    )
    (passing,) = [row for row in table.rows if row.cause == causes[1]]
    assert not passing.below_noise
    assert [row.cause for row in table.shown] == [causes[0]]
    lines = drawn(table, 80)
    assert causes[0] in lines[2]
    assert len(lines) == 3
    told_below = "\n".join(remarks(table))
    assert f"{causes[1]} < 66" in told_below
    assert f"{causes[16]} < 29" in told_below
    assert "1 of 17 causes significant; of such rows at most 1 %" in told_below
