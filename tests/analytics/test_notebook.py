"""The notebook of the documentation answers its questions on a store that the simulator wrote."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from nbformat import NotebookNode

from aggregator.statistics.ratios import coverage
from analytics import RollupPeriod, connect
from analytics.rollup_files import utc
from pointillist.play.setup import Changes, Setup
from scripts.notebook_page import MARK, NOTEBOOK, cells_run, executed, on_page_markdown
from simulator.engine.interface import EngineSettings, Noise, WindowOutcome
from simulator.engine.simulation import Due, Simulation
from simulator.outcome.truth import truth_cells
from simulator.store_fill import StoreFill
from tests.browser.server_kit import served, wait_until_read
from wire.catalogue import Catalogue

pytestmark = pytest.mark.release

QUESTIONS = 10
HOSTS = 300
WEEKS = 9.0
MODELS = ("H100", "A100")
TRUE_SECTIONS = ("kernel_mix", "kernel_mix_by_model", "application_mix")

_PLAN = f"""
format = 1
name = "practice"
scheme = "masked"
epsilon = 100
delta = 1e-6
hosts = {HOSTS}
n_min = 250
t = 30
min_operators = 3
gpus_per_host = 8

[[task]]
series = "day"
window_s = 86_400
lateness_s = 30
retention_s = 28_800
[task.weights]
kernel_mix = 0.2
kernel_mix_by_model = 0.2
application_mix = 0.2
applications_seen = 0.1

[[task]]
series = "week"
window_s = 604_800
lateness_s = 30
retention_s = 28_800
[task.weights]
incidents = 0.1

[[task]]
series = "eight_weeks"
window_s = 4_838_400
lateness_s = 30
retention_s = 28_800
[task.weights]
hardware_faults = 0.1
"""

_SCENARIO = f"""
format = 1
name = "practice"
seed = 5
hosts = {HOSTS}
start = 2026-02-12T00:00:00Z
duration_s = 5_443_200
step_s = 86_400
operators = [4, 3, 2, 1]

[applications.flash_crowd]
application = "moe_inference"
begin_hours = 672
ramp_hours = 24
share = 0.4

[faults]
lemon_share = 0.1

[upgrades]
every_hours = 504
wave_share = 0.5
wave_minutes = 600
down_minutes = 1_440

[[shape]]
gpu_model = "H100"
share = 0.6

[[shape]]
gpu_model = "A100"
share = 0.4
"""

_OF_THE_KERNEL = """
import importlib.util
import sys

counted = "SELECT count(DISTINCT period_start) AS weeks FROM weeks"
with pointillist.connect({address!r}) as there:
    asked = int(there.sql(counted)["weeks"][0])
has_widgets = importlib.util.find_spec("ipywidgets") is not None
sys.executable, has_widgets, int(fleet.sql(counted)["weeks"][0]), asked
"""


class NotedSimulation(Simulation):
    """Keeps what was true of each window."""

    truth: list[dict[str, Any]]

    def apart(self, *given: Any) -> Iterator[tuple[Due, list[WindowOutcome]]]:
        """Give what is played."""
        self.truth = []
        week, eight_weeks = RollupPeriod.WEEK, RollupPeriod.EIGHT_WEEKS
        for due, outcomes in super().apart(*given):
            for outcome in outcomes:
                if outcome.released is None:
                    continue
                start = utc(outcome.start)
                periods = {p.value: p.start(start) for p in (week, eight_weeks)}
                self.truth += [
                    {**periods, "section": cell.section, "cell": cell.cell, "truth": cell.truth}
                    for cell in truth_cells(outcome, self.catalogue)
                    if cell.section in TRUE_SECTIONS
                ]
            yield due, outcomes


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    return play(tmp_path_factory.mktemp("practice"))


def play(folder: Path) -> tuple[Path, pd.DataFrame]:
    """Write nine weeks of a small fleet, little noise; give what was true of each window, too."""
    plan, scenario = folder / "plan.toml", folder / "scenario.toml"
    plan.write_text(_PLAN)
    scenario.write_text(_SCENARIO)
    setup = Setup.make(str(scenario), str(plan), Changes())
    settings = EngineSettings(noise=Noise.SEEDED)
    simulation = NotedSimulation(
        setup.scenario, setup.plan, Catalogue.load(), settings, plays=setup.plays
    )
    for _ in StoreFill(simulation, folder / "releases", WEEKS).steps():
        pass
    return folder / "releases", pd.DataFrame(simulation.truth)


@pytest.fixture(scope="module")
def store(played: tuple[Path, pd.DataFrame]) -> Path:
    """The folder of releases."""
    return played[0]


def cells() -> list[dict[str, Any]]:
    """The notebook's cells as they lie in its file."""
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return found


@pytest.fixture(scope="module")
def ran(store: Path) -> Iterator[NotebookNode]:
    """The notebook as a Jupyter kernel ran it, and a cell of ours that asks a server."""
    with served(store) as address:
        wait_until_read(address)
        yield executed(store, _OF_THE_KERNEL.format(address=address))


@pytest.fixture(scope="module")
def answers(ran: NotebookNode) -> dict[int, list[str]]:
    """What the cells of each question show, in order."""
    shown: dict[int, list[str]] = {}
    question = 0
    for cell in ran.cells[:-1]:
        if cell.cell_type == "markdown":
            numbers = re.findall(r"^## (\d+)\. ", cell.source, re.MULTILINE)
            question = int(numbers[-1]) if numbers else question
        else:
            shown.setdefault(question, []).append(_shown(cell))
    return shown


def _shown(cell: NotebookNode) -> str:
    """What a cell ends with, as Markdown where it is."""
    (output,) = cell.outputs
    return str(output.data.get("text/markdown", output.data["text/plain"]))


@pytest.mark.release
def test_kernel_without_ipywidgets_runs_every_cell_and_asks_a_server(ran: NotebookNode) -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert cells_run(ran) == len(code) + 1
    python, has_widgets, weeks, asked = ast.literal_eval(_shown(ran.cells[-1]))
    assert python == sys.executable
    assert not has_widgets, "expected an environment without ipywidgets, which hides what fails"
    assert asked == weeks > 0


def test_every_question_is_answered_with_intervals_and_with_what_it_does_not_say(
    answers: dict[int, list[str]],
) -> None:
    text = "\n".join("".join(cell["source"]) for cell in cells())
    headings = [int(number) for number in re.findall(r"^## (\d+)\. ", text, re.MULTILINE)]
    assert headings == list(range(1, QUESTIONS + 1))
    assert text.count("**It does not say**") == QUESTIONS
    assert "fidelity noise; no fleet stands behind" in answers[0][0]
    sentences = {question: answers[question][-1] for question in headings[:-1]}
    quiet = "Nothing is told to have changed; the largest interval reaches"
    assert all("**" in said or said.startswith(quiet) for said in sentences.values()), sentences
    of_shares = (sentences[number] for number in (1, 3, 6))
    assert all(
        re.search(r"-?\d+\.\d\d to -?\d+\.\d\d (%|points)", sentence) for sentence in of_shares
    )


def test_answers_are_those_of_the_simulated_truth(answers: dict[int, list[str]]) -> None:
    assert "**A100 spends more of its time on attention**" in answers[3][0]
    assert "moe_inference" in answers[4][0]  # the new program is named as the other suspect
    assert "**nic_cross_traffic**" in answers[5][-1]
    assert "USD" in answers[5][-1]
    assert answers[6][0].startswith("- **moe_inference**")
    assert "hosts (" in answers[7][0]
    assert "windows, for n_min" in answers[9][-1]
    assert "**epsilon 100 at delta 1e-06**" in answers[10][1]


def test_intervals_hold_what_the_simulator_knows(
    played: tuple[Path, pd.DataFrame], answers: dict[int, list[str]]
) -> None:
    truth = played[1]
    keys = ["period_start", "section", "cell"]
    sums = truth.rename(columns={"week": "period_start"}).groupby(keys, as_index=False)[
        "truth"
    ].sum()  # fmt: skip
    with connect(played[0]) as fleet:
        said = pd.concat([fleet.mix(by, "week") for by in ("family", "application")])
    rows = said.merge(sums, on=keys)
    held = coverage(int(rows["truth"].between(rows["low"], rows["high"]).sum()), len(rows))
    assert len(rows) > 500
    assert held.consistent_with(0.95), held
    shares = {model: _share(truth, f"{model}/gpu_time/attention", f"{model}/") for model in MODELS}
    assert shares["A100"] > shares["H100"]
    found = re.findall(r"(\d+\.\d+) %", answers[3][0])
    assert [float(number) for number in found[:2]] == pytest.approx(
        [100 * shares["H100"], 100 * shares["A100"]], abs=0.4
    )


def _share(truth: pd.DataFrame, cell: str, group: str) -> float:
    """Share of the newest eight weeks' measured time."""
    newest = truth["eight_weeks"] == truth["eight_weeks"].min()
    own = truth[(truth["section"] == "kernel_mix_by_model") & newest]
    own = own[own["cell"].str.startswith(group) & ~own["cell"].str.contains("launch_share")]
    measured = own[~own["cell"].str.endswith("/unmeasured")]["truth"].sum()
    return float(own[own["cell"] == cell]["truth"].sum() / measured)


def test_error_shrinks_with_the_root_of_the_time_as_it_says(answers: dict[int, list[str]]) -> None:
    shown = re.findall(r"(day|week|eight_weeks) +([\d.]+)$", answers[8][0], re.MULTILINE)
    error = {period: float(points) for period, points in shown}
    assert error["day"] / error["week"] == pytest.approx(7**0.5, rel=0.15)
    assert error["week"] / error["eight_weeks"] == pytest.approx(8**0.5, rel=0.15)


def test_committed_notebook_was_run_to_its_end_and_names_no_machine() -> None:
    for cell in cells():
        if cell["cell_type"] == "code":
            kinds = {output["output_type"] for output in cell["outputs"]}
            assert kinds == {"execute_result"}, "".join(cell["source"])
    assert not re.search(r"/(tmp|root|home|work)/", NOTEBOOK.read_text())


def test_page_shows_the_notebook_with_its_outputs() -> None:
    page = (NOTEBOOK.parent / "notebook.md").read_text()
    shown = on_page_markdown(page, page=None, config=None, files=None)
    assert MARK not in shown
    assert "## 10. What did all this cost one host's privacy?" in shown
    assert "<table" in shown
    assert on_page_markdown("# Another page\n") == "# Another page\n"
