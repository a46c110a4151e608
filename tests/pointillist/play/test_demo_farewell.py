"""What demos and simulations end with: text and chart say the same, and hide no discovery."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from rich.console import Console

from pointillist.play import chart, scenario_play
from pointillist.play.demo_plan import DemoPlan
from pointillist.play.demo_tally import DemoTally
from pointillist.play.stage import (
    PLUS_MINUS,
    SHOWN,
    Struck,
    Summary,
    cell_table,
    families,
    in_hosts,
    near,
    print_summary,
    readable,
    told_line,
)
from simulator.cell_view import CellView, judged, ranked
from tests.window_kit import CATALOGUE
from wire.task import CHECK_WORDS, Task

WINDOW = 100
FALSE = CellView("thermal_interface", 0.025, 0.01, 0.0)
"""Told from zero, and struck nobody."""

EVENTS = Struck(
    1_469,
    judged(
        [
            *(CellView(f"struck_{n}", 0.09 - 0.002 * n, 0.01, 0.09) for n in range(SHOWN - 1)),
            *(CellView(f"rare_{n}", 0.001, 0.01, 0.002) for n in range(5)),
            FALSE,
        ]
    ),
)
MIX = judged(
    [CellView("idle", 0.4076, 0.0033, 0.41), CellView("gpu_time/gemm", 0.19, 0.0033, 0.193)]
)


@pytest.fixture
def tally() -> DemoTally:
    """The newest window is of another series, with other hosts."""
    tasks = DemoPlan(1_500, 3, live=False).tasks(CATALOGUE, WINDOW, 2, bytes(32), bytes([1]) * 32)
    mix, week, *_ = tasks
    found = DemoTally(tasks, CATALOGUE)
    cells = CATALOGUE.section("incidents").cells
    struck = released(week, "incidents", 1_469, {"disk_io": (132.77, 14.8)})
    busy = [
        released(mix, spec.name, 1_461, dict.fromkeys(CATALOGUE.section(spec.name).cells, (1, 1)))
        for spec in mix.sections
    ]
    truths = {
        (week.series, week.last_window): (1_469, [140 * (name == "disk_io") for name in cells]),
        (mix.series, mix.last_window): (1_461, [0] * (mix.d - CHECK_WORDS)),
    }
    found.take(pd.concat([struck, *busy]), truths)
    return found


def released(
    task: Task, section: str, hosts: int, cells: dict[str, tuple[float, float]]
) -> pd.DataFrame:
    """The released table of one section of a task's last window; cells: (value, error)."""
    start = pd.Timestamp(task.last_window, unit="s")
    fixed = {"series": task.series, "window_start": start, "section": section, "n_hosts": hosts}
    names = ("low", "high", "share", "share_low", "share_high", "below_noise", "bias_bound")
    unread = dict.fromkeys(names, 0.0)
    rows = []
    for name in CATALOGUE.section(section).released_cells:
        value, error = cells.get(name, (0.0, 15.0))
        rows.append({"cell": name, "value": value, "standard_error": error, **fixed, **unread})
    return pd.DataFrame(rows)


def told(width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    shown = ranked(EVENTS.views)[:SHOWN]
    table = cell_table("Incidents", shown, in_hosts(EVENTS.hosts))
    print_summary(console, Summary(tables=(table, told_line(shown, EVENTS.views))))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_demo_counts_hosts_of_the_releases_own_window(tally: DemoTally) -> None:
    struck = tally.events["incidents"]
    (view,) = [view for view in struck.views if view.cell == "disk_io"]
    write = in_hosts(struck.hosts)
    assert (write(view.share), write(view.truth or 0)) == ("133", "140")
    assert tally.events["hardware_faults"] == Struck(0, [])


def test_demo_text_and_chart_show_the_same_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    figure, axis = plt.subplots()
    monkeypatch.setattr(chart, "_bars", lambda _, views, *rest: drawn.extend(v.cell for v in views))
    chart._events(axis, "hardware_faults", EVENTS)
    plt.close(figure)
    lines = told().splitlines()[1 : 1 + SHOWN]
    assert [line[:34].strip().replace(" ", "_") for line in lines] == drawn
    assert FALSE.cell in drawn


def test_demo_shows_a_false_discovery_before_what_is_not_told_from_zero() -> None:
    cells = [view.cell for view in ranked(EVENTS.views)]
    assert cells.index(FALSE.cell) == SHOWN - 1
    assert families(judged([*MIX, replace(FALSE, share=0.5)]))[0].cell == FALSE.cell


def test_demo_chart_writes_the_interval_of_the_text() -> None:
    figure, axis = plt.subplots()
    chart._mix(axis, MIX)
    title = axis.get_title()
    plt.close(figure)
    assert f"± {196 * MIX[0].standard_error:.2f} %" in title
    assert "40.76" in title
    assert "1.96" in PLUS_MINUS


def test_demo_chart_draws_a_window_that_is_not_told_from_zero_as_less_than() -> None:
    faint = judged([MIX[0], replace(MIX[1], share=0.001)])
    figure, axis = plt.subplots()
    chart._over_time(axis, MIX, [MIX, faint])
    points, limits, truth = (np.asarray(line.get_ydata(), np.float64) for line in axis.lines)
    plt.close(figure)
    assert points[0] == pytest.approx(19.0)
    assert limits[1] == pytest.approx(100 * faint[1].most)
    assert np.isnan([points[1], limits[0]]).all()
    assert truth.tolist() == pytest.approx([19.3, 19.3])


def test_demo_text_is_not_wrapped_in_a_file() -> None:
    last = told(width=40).splitlines()[-2]
    assert last.endswith("of such rows at most 1 % are expected to be empty")


def test_simulation_tells_coverage_of_every_section_and_the_bound_of_a_bias() -> None:
    summary = {
        "windows": 2, "windows_released": 2, "reports_released": 10, "epsilon": 2.0, "delta": 1e-9,
        "intervals": 100, "intervals_held": 95, "refused": {}, "kept_back": {},
        "recorded_share_of_busy_gpus": None,
        "coverage": [
            {"series": "week", "section": "incidents", "percent": 38.46, "intervals": 13},
            {"series": "minute", "section": "kernel_mix", "percent": 95.0, "intervals": 100},
        ],
        "bias_bounds": {"incidents": 31.6},
    }  # fmt: skip
    told = "\n".join(scenario_play.checks(summary))
    assert "95.0 % of 100 intervals hold the truth" in told
    assert "worst first: week incidents 38.5 % of 13, minute kernel mix 95.0 % of 100" in told
    assert "by at most (95 %) incidents 32" in told
    summary["bias_bounds"] = {}
    assert "left some out" not in "\n".join(scenario_play.checks(summary))


def many_windows(number: int) -> list[list[CellView]]:
    return [MIX for _ in range(number)]


def test_chart_of_many_windows_draws_their_means_with_smaller_errors() -> None:
    figure, axis = plt.subplots()
    chart._over_time(axis, MIX, many_windows(180))
    points = np.asarray(axis.lines[0].get_xdata(), np.float64)
    title = axis.get_title()
    plt.close(figure)
    assert points.tolist() == [9 * at + 5 for at in range(20)]
    assert "means of 9 windows" in title
    (mean, *_), (window, *_) = chart.grouped(many_windows(180))[0], MIX
    assert mean.share == pytest.approx(window.share)
    assert mean.truth == pytest.approx(window.truth)
    assert mean.standard_error == pytest.approx(window.standard_error / 3)
    assert chart.grouped(many_windows(40)) == many_windows(40)


@pytest.mark.parametrize(
    ("windows", "events", "shown"),
    [
        (2, {"incidents": Struck(0, []), "hardware_faults": EVENTS}, ["mix", "course", "hardware"]),
        (1, {"incidents": Struck(0, [])}, ["mix"]),
        (2, {}, ["mix", "course"]),
    ],
)
def test_chart_gives_no_place_to_what_has_nothing_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: int, events: Any, shown: list[str]
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(chart, "_mix", lambda *_: drawn.append("mix"))
    monkeypatch.setattr(chart, "_over_time", lambda *_: drawn.append("course"))
    monkeypatch.setattr(chart, "_events", lambda _, name, __: drawn.append(name.split("_")[0]))
    axes: list[int] = []
    monkeypatch.setattr(plt, "close", lambda figure: axes.append(len(figure.axes)))
    chart.draw(tmp_path / "a.png", "t", MIX, many_windows(windows), events)
    assert drawn == shown
    assert axes == [len(shown)]


def test_launches_in_a_table_of_gpu_time_are_named() -> None:
    named = [readable(cell) for cell in ("gpu_time/sort_scan", "launch_share/gemm", "user")]
    assert named == ["sort scan", "gemm by launches", "user"]


def test_paths_below_the_working_folder_are_written_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert near(tmp_path / "runs" / "a") == "runs/a"
    assert near("/elsewhere/a") == "/elsewhere/a"
