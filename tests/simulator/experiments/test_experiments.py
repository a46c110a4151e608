"""Sweeps: what a file may ask for, what each axis turns, what is kept, and what the report says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pointillist.plan_file import default_plan
from simulator.experiments import sweep as sweeping
from simulator.experiments.experiment_file import (
    Experiment,
    ExperimentError,
    ExperimentRun,
    parse,
    runs_of,
    turned,
)
from simulator.experiments.experiment_file import load as load_experiment
from simulator.experiments.experiment_report import report_html, show
from simulator.experiments.figures import FIGURES, draw
from simulator.experiments.kinds import KINDS
from simulator.experiments.sweep import SweepFailed, read_rows, sweep, write_table
from simulator.scenario import load
from wire.catalogue import Catalogue

pytestmark = pytest.mark.release

CATALOGUE = Catalogue.load()
REPORT = Path(__file__).parents[3] / "docs" / "experiments"
SMALL = {
    "format": 1,
    "name": "small",
    "part": [
        {
            "name": "epsilon",
            "scenario": "steady",
            "hosts": 60,
            "hours": 0.05,
            "axes": {"epsilon": [1, 4]},
        }
    ],
}


def experiment(**part: Any) -> Experiment:
    return parse(SMALL | {"part": [SMALL["part"][0] | part]}, KINDS, FIGURES)  # type: ignore[index]


def runs(asked: Experiment) -> list[ExperimentRun]:
    return list(runs_of(asked, load, lambda _: default_plan(), CATALOGUE))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small experiment, all of it played in this process."""
    folder = tmp_path_factory.mktemp("finished")
    asked = runs(experiment())
    first = list(sweep(asked[:1], folder))
    assert [one.kept for one in first] == [False]
    whole = list(sweep(asked, folder))
    assert [one.kept for one in whole] == [True, False]
    assert whole[0].row == first[0].row
    return folder


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"axes": {"epsilom": [1]}}, "did you mean 'epsilon'"),
        ({"axes": {"epsilon": [0]}}, "a number from 0.01 to 32, got 0"),
        ({"axes": {"window": [1.5]}}, "an integer from 1 to 3600, got 1.5"),
        ({"axes": {"epsilon": []}}, "an array of 1 to 100"),
        ({"axes": {"epsilon": [1, 1]}}, "each value once, got (1, 1)"),
        ({"axes": {"epsilon": [[1]]}}, "a number from 0.01 to 32, got [1]"),
        ({"axes": {"epsilon": 1}}, "axes.epsilon: expected an array, got 1"),
        ({"kind": "magic"}, "one of windows, seen"),
        ({"hosts": "many"}, "an integer from 1 to"),
        ({"fidelity": "real"}, "one of auto, exact"),
        ({"name": "Not a name"}, "text like [a-z0-9]"),
        ({"seeds": 2000}, "from 1 to 1,000"),
    ],
)
def test_experiment_file_refuses_what_it_does_not_know(part: dict[str, Any], told: str) -> None:
    with pytest.raises(ExperimentError, match=re.escape(told)):
        experiment(**part)


def test_experiment_file_refuses_more_runs_than_it_may_ask_for() -> None:
    with pytest.raises(ExperimentError, match="at most 10,000 runs"):
        experiment(seeds=1000, axes={"epsilon": list(range(1, 20))})


def test_axes_turn_what_they_are_named_for() -> None:
    setup = load("steady"), default_plan()
    point = {"epsilon": 4.0, "window": 300, "cohort": 500, "dropout": 0.25, "sampling_rate": 0.5}
    scenario, plan = turned(setup, point, CATALOGUE)
    minute = plan.tasks[0]
    assert (plan.epsilon_millionths, minute.window_s, scenario.hosts) == (4_000_000, 300, 500)
    assert scenario.dropout.share == 0.25
    assert {one.rate_millionths for one in minute.sections} == {500_000}
    # Daily and weekly tasks stay as they were.
    assert plan.tasks[1:] == default_plan().tasks[1:]


def test_axis_d_keeps_the_budget_and_fits() -> None:
    _, plan = turned((load("steady"), default_plan()), {"d": 400}, CATALOGUE)
    before, after = default_plan().tasks[0], plan.tasks[0]
    lengths = [CATALOGUE.section(one.name).length for one in after.sections]
    assert 0 < sum(lengths) + 2 <= 400
    assert len(after.sections) < len(before.sections)
    spare = before.weight_millionths - after.weight_millionths
    assert 0 <= spare < len(after.sections)


def test_sweep_keeps_each_run_and_plays_it_once(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = runs(experiment())
    rows = read_rows(asked, finished)
    assert [row["axis_epsilon"] for row in rows] == [1, 4]
    assert all(row["windows_released"] == row["windows"] == 3 for row in rows)
    # Four times the budget is a quarter of the noise, up to the rounding in both.
    ratio = rows[0]["standard_error_points"] / rows[1]["standard_error_points"]
    assert ratio == pytest.approx(4, rel=0.15)
    assert not list((finished / "work").iterdir())
    # Nothing is played when all is finished.
    monkeypatch.setattr(sweeping, "play_one", lambda *_: pytest.fail("played again"))
    assert all(one.kept for one in sweep(asked, finished))


def test_sweep_in_processes_gives_the_same_rows(tmp_path: Path, finished: Path) -> None:
    asked = runs(experiment())
    list(sweep(asked, tmp_path, processes=2))

    def figures(folder: Path) -> list[list[Any]]:
        names = ("error_points", "standard_error_points", "reports_released", "intervals_held")
        return [[row[name] for name in names] for row in read_rows(asked, folder)]

    assert figures(tmp_path) == figures(finished)


def test_sweep_goes_on_after_a_run_that_was_cut_off(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run, _) = runs(experiment())
    (whole,) = read_rows([run], finished)
    work = tmp_path / "work" / run.key
    work.mkdir(parents=True)
    real = KINDS["windows"]

    def cut(one: ExperimentRun, folder: Path, catalogue: Catalogue) -> dict[str, Any]:
        real(one, folder, catalogue)  # every window is in the checkpoint
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "KINDS", {"windows": cut})
    with pytest.raises(KeyboardInterrupt):
        list(sweep([run], tmp_path))
    assert list(work.iterdir())
    assert not read_rows([run], tmp_path)
    monkeypatch.setattr(sweeping, "KINDS", KINDS)
    (again,) = sweep([run], tmp_path)
    assert again.row["error_points"] == whole["error_points"]
    assert again.row["windows"] == 3


def test_sweep_keeps_a_refused_combination_as_a_row(tmp_path: Path) -> None:
    # One host is nobody's crowd: no cohort that the plan's bounds allow.
    asked = runs(experiment(hosts=1, axes={}))
    (done,) = sweep(asked, tmp_path)
    assert done.row["refusal"]
    assert "windows" not in done.row


def test_sweep_names_the_run_that_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = runs(experiment(plan="", scenario="steady", kind="attribution", axes={"job_gpus": [8]},
                            options={"draws": "many"}))  # fmt: skip
    with pytest.raises(SweepFailed, match=r"epsilon job_gpus=8 seed=1: .*ValueError"):
        list(sweep(asked, tmp_path, processes=2))


def test_run_key_changes_with_what_its_row_depends_on() -> None:
    one, two = runs(experiment())
    assert one.key != two.key
    assert one.key == runs(experiment())[0].key
    assert one.key != runs(experiment(hours=0.1))[0].key


class Outside(HTMLParser):
    """Everything a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        self.links += [v for k, v in attrs if k in {"src", "href", "xlink:href"} and v]
        if named.get("id"):
            self.ids.append(str(named["id"]))


def test_report_needs_no_network_and_says_its_command(finished: Path) -> None:
    asked = experiment(title="Error & <epsilon>", note="A note.")
    done = runs(asked)
    shown = show(asked, read_rows(done, finished))
    page = report_html(asked, shown, "pointillist experiment small.toml", len(done))
    seen = Outside()
    seen.feed(page)
    assert all(link.startswith("#") for link in seen.links)
    assert not {"script", "img", "link", "iframe"} & set(seen.tags)
    assert len(seen.ids) == len(set(seen.ids))
    assert "Error &amp; &lt;epsilon&gt;" in page
    assert "pointillist experiment small.toml --part epsilon" in page
    assert re.search(
        r"From 1 to 4 epsilon the standard error of one window falls [34]\.\d-fold", page
    )
    assert "are variants by rule" in page


def test_table_holds_one_row_a_run(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_table([{"a": 1, "cells": [{"cell": "x"}]}, {"a": 2, "b": "y"}], tmp_path / "t.parquet")
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert rows == [
        {"a": 1, "cells": [{"cell": "x"}], "b": None},
        {"a": 2, "cells": None, "b": "y"},
    ]


def test_figures_of_the_same_rows_are_the_same_bytes() -> None:
    rows = [
        {"axis_dropout": share, "hosts": 100, "windows": 2, "reports": int(200 * (1 - share)),
         "reports_released": 0 if share > 0.2 else int(200 * (1 - share)),
         "windows_released": 0 if share > 0.2 else 2}
        for share in (0.0, 0.1, 0.2, 0.3)
    ]  # fmt: skip
    one, two = draw("dropout", rows), draw("dropout", rows)
    assert one is not None
    assert two is not None
    assert one.svg == two.svg
    assert one.png[:4] == b"\x89PNG"
    assert one.sentence.startswith("Up to 20 % of silent hosts every window is released; from 30 %")


def test_committed_report_is_that_of_the_committed_file() -> None:
    asked = load_experiment(REPORT / "report.toml", KINDS, FIGURES)
    page = (REPORT / "report.html").read_text()
    assert len(page.encode()) < 1_500_000
    for part in asked.parts:
        assert f'id="{part.name}"' in page
        assert part.title in page.replace("&#x27;", "'")
