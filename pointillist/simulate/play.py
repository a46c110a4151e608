"""Plays a simulation: every window to the checkpoint, its cells to Parquet, its scores to a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from aggregator.releases.store import Store
from pointillist.run_chart import draw
from simulator.adversaries import CohortPlan, play_scenario
from simulator.cell_view import CellView
from simulator.engine.crew import peak_bytes
from simulator.engine.engine_port import EngineSettings, Noise, WindowOutcome
from simulator.engine.outcome_store import release_of
from simulator.engine.simulation import CHECKPOINT, Simulation, Step
from simulator.experiments.scores import Scores, SectionMean
from simulator.outcome import TruthCell, TruthWriter, cause_table, coverage_rows
from simulator.outcome.truth_tables import SECTIONS
from simulator.scenario import Adversaries, Scenario
from wire.catalogue import Catalogue

from .setup import Setup
from .simulation_screen import Moment, counted

CELLS_FILE: Final = "cells.parquet"
CHART_FILE: Final = "mix.png"
SUMMARY_FILE: Final = "summary.json"
RELEASES: Final = "releases"
STORE_FILE: Final = "store.duckdb"
COHORT_HOSTS: Final = 40
"""Of the cohort in which a scenario's adversaries are played, every record sealed and sent."""

MOST_POINTS: Final = 240
"""Windows that the chart draws; of more, every other one goes, again and again."""

Show = Callable[[Moment], None]


@dataclass(slots=True)
class Result:
    """What a finished simulation came to.

    summary     for --json; files: what it is -> path
    """

    summary: dict[str, Any]
    files: dict[str, Path]
    mean: list[CellView]


@dataclass(slots=True)
class _Course:
    """The released mix over time, thinned."""

    stride: int = 1
    seen: int = 0
    windows: list[list[CellView]] = field(default_factory=list)

    def add(self, latest: list[CellView]) -> None:
        if self.seen % self.stride == 0:
            self.windows.append(latest)
        self.seen += 1
        if len(self.windows) > MOST_POINTS:
            self.windows, self.stride = self.windows[::2], self.stride * 2


class Player:
    """One simulation in one folder."""

    def __init__(self, setup: Setup, folder: Path, processes: int, section: str) -> None:
        """Lay out the fleet.

        section     whose cells the screen and the chart show
        Raises      ScenarioError, ParameterError, JournalError, ValueError for a section that no
                    task releases
        """
        self.setup, self.folder = setup, folder
        self.catalogue = Catalogue.load()
        # Seeded, as `--seed` promises that a run repeats; the distribution is the production one.
        settings = EngineSettings(noise=Noise.SEEDED, processes=processes)
        self.simulation = Simulation(
            setup.scenario, setup.plan, self.catalogue, settings, folder, plays=setup.plays
        )
        sections = [spec.name for task in self.simulation.tasks for spec in task.sections]
        if not sections:
            raise ValueError(
                f"expected a scenario that holds a whole window of plan {setup.plan.name!r}, got "
                f"{setup.scenario.duration_s} s: --hours makes it longer"
            )
        if section not in sections:
            raise ValueError(
                f"section: expected one that ends within the scenario ({', '.join(sections)}), "
                f"got {section!r}"
            )
        self.scores = Scores(SectionMean(section), setup.scenario.hosts)
        self._course = _Course()
        self._causes: dict[str, Any] = {}
        self._bias_bounds: dict[str, float] = {}
        self._recorded: float | None = None

    def play(self, show: Show) -> Result:
        """Settle every window, then write chart and summary.

        Raises      AnotherRun, CrewFailed, OSError
        """
        due = len(self.simulation.due)
        settled = 0
        with TruthWriter(self.folder / CELLS_FILE, self.catalogue) as writer:
            for step in self.simulation.steps():
                self._count(step, writer.add(step.outcome))
                settled += 1
                show(self._moment(step, due, settled))
        return self._result()

    def _count(self, step: Step, cells: list[TruthCell]) -> None:
        self.scores.add(step, cells)
        if self._recorded is None:
            self._recorded = self.simulation.model.recorded_share(step.state)
        if step.due.series == self._series and step.outcome.released is not None:
            self._course.add(self.scores.section.latest)
        self._bias_bounds |= {cell.section: cell.bias_bound for cell in cells if cell.bias_bound}
        counted = {cell.section for cell in cells} & set(SECTIONS)
        if counted and step.outcome.released is not None:
            self._keep_release(step.outcome)
        for section in counted:
            table = cause_table(cells, section)
            self._causes[section] = [
                {"cause": row.cause, "true_hosts": row.true_hosts, "shown": row.shown}
                for row in table.rows
                if row.true_hosts or row.told
            ]

    def _keep_release(self, outcome: WindowOutcome) -> None:
        """Store a release that counts causes as a Leader does: `pointillist causes` reads it."""
        with Store(self.folder / STORE_FILE, self.folder / RELEASES, self.catalogue) as store:
            store.write(release_of(outcome))

    @property
    def _series(self) -> str:
        """The series that releases the section that is shown."""
        name = self.scores.section.section
        return next(
            t.series for t in self.simulation.tasks if any(s.name == name for s in t.sections)
        )

    def _moment(self, step: Step, due: int, settled: int) -> Moment:
        scores, state, scenario = self.scores, step.state, self.setup.scenario
        inventory = self.simulation.model.inventory
        busy = float((state.busy * inventory.gpus).sum()) / inventory.total_gpus
        coverage = scores.coverage.result() if scores.released else ()
        return Moment(
            name=scenario.name,
            fidelity=self.simulation.fidelity,
            due=due,
            settled=settled,
            time_s=step.due.end_s,
            reporting=int(np.count_nonzero(state.reporting)),
            hosts=scenario.hosts,
            gpus=inventory.total_gpus,
            busy_share=busy,
            simulated_s=step.due.end_s - scenario.start_s,
            wall_s=scores.wall_s,
            coverage=coverage,
            refused=dict(scores.refused),
            kept_back=dict(scores.kept_back),
            latest=scores.section.latest,
            mean=scores.section.mean(),
            section=scores.section.section,
        )

    def _result(self) -> Result:
        folder, scenario = self.folder, self.setup.scenario
        mean = self.scores.section.mean()
        files = {
            "cells": folder / CELLS_FILE,
            "checkpoint": folder / CHECKPOINT,
            "summary": folder / SUMMARY_FILE,
        }
        if (folder / RELEASES).is_dir():
            files["releases"] = folder / RELEASES
        if mean:
            files["chart"] = folder / CHART_FILE
            title = (
                f"{scenario.name}: {scenario.hosts:,} simulated hosts, epsilon "
                f"{self.setup.plan.epsilon_millionths / 1e6:g} a week, {self.simulation.fidelity}"
            )
            draw(files["chart"], title, mean, self._course.windows, {})
        summary = self._summary() | {"files": {name: str(path) for name, path in files.items()}}
        files["summary"].write_text(json.dumps(summary, indent=2) + "\n")
        return Result(summary, files, mean)

    def _summary(self) -> dict[str, Any]:
        scenario, plan, simulation = self.setup.scenario, self.setup.plan, self.simulation
        return {
            "scenario": scenario.name,
            "plan": plan.name,
            "fidelity": simulation.fidelity,
            "seed": scenario.seed,
            "hosts": scenario.hosts,
            "gpus": simulation.model.inventory.total_gpus,
            "hours": scenario.hours,
            "epsilon": plan.epsilon_millionths / 1e6,
            "delta": plan.delta_1e12 / 1e12,
            "section": self.scores.section.section,
            **self.scores.row(),
            "coverage": coverage_rows(
                self.scores.coverage.result() if self.scores.released else ()
            ),
            "causes": self._causes,
            "bias_bounds": self._bias_bounds,
            "adversaries": adversaries(scenario),
            "recorded_share_of_busy_gpus": self._recorded,
            "happened": dict(simulation.model.counts),
            "peak_memory_bytes": peak_bytes(),
        }


def adversaries(scenario: Scenario) -> dict[str, Any]:
    """Play a scenario's lies, tricks and faults against production parties, in a small cohort.

    The windows themselves are of hosts that follow the protocol: what a lie moves is measured
    apart.
    """
    if scenario.adversaries == Adversaries():
        return {}
    plan = CohortPlan(hosts=min(scenario.hosts, COHORT_HOSTS), seed=scenario.seed)
    played = play_scenario(scenario, plan)
    lies = [
        {
            "lie": lie.lie,
            "liars": lie.liars,
            "moved_of_bound": lie.moved / lie.bound if lie.bound else 0.0,
            "bounded": lie.bounded,
            "refused": counted(dict(lie.refused)),
        }
        for lie in played.lies
    ]
    tricks = [
        {"trick": trick.trick, "answer": trick.answer, "sums": trick.sums}
        for trick in played.tricks
    ]
    faults = [
        {
            "fault": fault.fault,
            "size": fault.size,
            "released_percent": fault.reports_released_percent,
            "true_sums": fault.true_sums,
            "refused": counted(dict(fault.refused)),
        }
        for fault in played.faults
    ]
    return {"cohort": plan.hosts, "lies": lies, "tricks": tricks, "faults": faults}
