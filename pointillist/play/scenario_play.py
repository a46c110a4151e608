"""Plays a simulation: every window to the checkpoint, its cells to Parquet, its scores to a row.

And what it shows meanwhile, and says at its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.text import Text

from aggregator.releases.store import Store
from edge_agent.local.words import counted
from pointillist.table import Column
from simulator.adversaries.attacks import play_scenario
from simulator.adversaries.cohort import CohortPlan
from simulator.cell_view import CellView, ranked
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import CHECKPOINT, Simulation, Step, release_of
from simulator.engine.worker_pool import peak_bytes
from simulator.experiments.scores import Scores, SectionMean
from simulator.outcome.coverage import coverage_rows, percents
from simulator.outcome.truth import SECTIONS, TruthCell, TruthWriter, cause_table
from simulator.scenario import Adversaries, Scenario, names
from wire.catalogue import Catalogue

from . import stage
from .chart import draw
from .setup import Setup

CELLS_FILE: Final = "cells.parquet"
CHART_FILE: Final = "mix.png"
SUMMARY_FILE: Final = "summary.json"
RELEASES: Final = "releases"
STORE_FILE: Final = "store.duckdb"
COHORT_HOSTS: Final = 40
"""Of the cohort in which a scenario's adversaries are played, every record sealed and sent."""

MOST_POINTS: Final = 240
"""Windows that the chart draws; of more, every other one goes, again and again."""

ROWS: Final = 10
"""Of each table at the end."""


@dataclass(slots=True)
class PlayResult:
    """What a finished simulation came to.

    summary     for --json; files: what it is -> path
    """

    summary: dict[str, Any]
    files: dict[str, Path]
    mean: list[CellView]


@dataclass(slots=True)
class _Course:
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

    def play(self, show: Callable[[stage.Progress], None]) -> PlayResult:
        """Settle every window. Raises AnotherRun, WorkerFailed, OSError."""
        due = len(self.simulation.due)
        settled = 0
        with TruthWriter(self.folder / CELLS_FILE, self.catalogue) as writer:
            for step in self.simulation.steps():
                self._count(step, writer.add(step.outcome))
                settled += 1
                show(self._progress(step, due, settled))
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
            # As a Leader stores it: `pointillist causes` reads it.
            with Store(self.folder / STORE_FILE, self.folder / RELEASES, self.catalogue) as store:
                store.write(release_of(step.outcome))
        for section in counted:
            self._causes[section] = [
                {"cause": row.cause, "true_hosts": row.true_hosts, "shown": row.shown}
                for row in cause_table(cells, section)
                if row.true_hosts or row.told
            ]

    @property
    def _series(self) -> str:
        name = self.scores.section.section
        return next(
            t.series for t in self.simulation.tasks if any(s.name == name for s in t.sections)
        )

    def _progress(self, step: Step, due: int, settled: int) -> stage.Progress:
        scores, state, scenario = self.scores, step.state, self.setup.scenario
        inventory = self.simulation.model.inventory
        busy = float((state.busy * inventory.gpus).sum()) / inventory.total_gpus
        reporting = int(np.count_nonzero(state.reporting))
        hosts = f" of {scenario.hosts:,} hosts"
        speed = "from the checkpoint"
        left = "…"
        if scores.wall_s > 0:
            speed = f"{(step.due.end_s - scenario.start_s) / scores.wall_s:,.0f} x real time"
            left_s = scores.wall_s / settled * (due - settled)
            left = f"{left_s:.0f} s left" if left_s < 120 else f"{left_s / 60:.0f} min left"
        kept_back = f"not released: {said(scores.kept_back)}" if scores.kept_back else ""
        headline = Text.assemble(
            (f"{reporting:,}", "bold"),
            f"{hosts} in the sum · {inventory.total_gpus:,} GPUs, {100 * busy:.0f} % busy · ",
            (f"{datetime.fromtimestamp(step.due.end_s, UTC):%a %d %b %H:%M} UTC", "bold yellow"),
        )
        below = [Text(f"refused reports: {said(scores.refused)}", "dim")]
        if scores.released:
            coverage = scores.coverage.result()
            held = f"{100 * coverage[0].values.rate:.1f} % of the 95 % intervals hold the truth"
            worst = f"; worst first: {percents(coverage_rows(coverage))}"
            below.insert(0, Text.assemble(held, (worst, "dim")))
        if scores.section.latest:
            below.append(Text(stage.LESS, "dim"))
        if kept_back:
            below.append(Text(f"windows {kept_back}", "bold red"))
        return stage.Progress(
            title=(
                f"[bold]Pointillist simulate[/bold] · {scenario.name} · {self.simulation.fidelity}"
            ),
            subtitle=f"{scores.section.section.replace('_', ' ')} · every host is simulated",
            colour="magenta",
            headline=headline,
            note=f"{settled:,} of {due:,} · {speed} · {left}",
            done=settled,
            due=due,
            latest=scores.section.latest,
            mean=scores.section.mean(),
            below=below,
            line=", ".join(
                [f"{settled} of {due}: {reporting:,}{hosts}", speed]
                + ([kept_back] if kept_back else [])
            ),
        )

    def _result(self) -> PlayResult:
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
        return PlayResult(summary, files, mean)

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
    """Play a scenario's attacks and faults against production parties, in a small cohort.

    The windows themselves are of hosts that follow the protocol: what a lie moves is measured
    apart.
    """
    if scenario.adversaries == Adversaries():
        return {}
    plan = CohortPlan(hosts=min(scenario.hosts, COHORT_HOSTS), seed=scenario.seed)
    played = play_scenario(scenario, plan)
    return {
        "cohort": plan.hosts,
        "lies": [
            {
                "lie": lie.lie,
                "liars": lie.liars,
                "moved_of_bound": lie.moved / lie.bound if lie.bound else 0.0,
                "bounded": lie.bounded,
                "refused": said(lie.refused),
            }
            for lie in played.lies
        ],
        "tricks": [
            {"trick": trick.trick, "answer": trick.answer, "sums": trick.sums}
            for trick in played.tricks
        ],
        "faults": [
            {
                "fault": fault.fault,
                "size": fault.size,
                "released_percent": fault.reports_released_percent,
                "true_sums": fault.true_sums,
                "refused": said(fault.refused),
            }
            for fault in played.faults
        ],
    }


def said(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def simulation_end(result: PlayResult, folder: Path) -> stage.Summary:
    summary = result.summary
    tables = _mix_tables(summary, result.mean)
    for section, rows in summary["causes"].items():
        tables += _cause_tables(section, rows)
    return stage.Summary(
        f"{summary['scenario']}: what the fleet would have learned",
        [*tables, *_adversary_tables(summary["adversaries"])],
        [f"- {line}" for line in checks(summary)],
        result.files,
        next_commands(summary, folder),
    )


def _mix_tables(
    summary: Mapping[str, Any], mean: Sequence[CellView]
) -> list[stage.CellTable | str]:
    if not mean:
        kept_back = f"Windows: {summary['kept_back']}"
        return [f"\n[bold red]Nothing was released.[/bold red] {kept_back}\n"]
    section = summary["section"].replace("_", " ")
    title = f"{section}, mean of {counted(summary['windows_released'], 'window')}"
    shown = ranked(mean)[:ROWS]
    table = stage.cell_table(title, shown, lambda value: f"{stage.share(value)} %")
    return [f"{stage.PLUS_MINUS}.\n{stage.LESS}.\n", table, stage.told_line(shown, mean)]


def _cause_tables(section: str, rows: Sequence[Mapping[str, Any]]) -> list[stage.CellTable | str]:
    columns = (
        stage.name_column(
            f"{section.replace('_', ' ')}, hosts", lambda row: stage.readable(row["cause"])
        ),
        Column("released", itemgetter("shown"), right=True),
        Column("truth", lambda row: f"{row['true_hosts']:,}", right=True, style=lambda _: "green"),
    )
    more = len(rows) - ROWS
    note = f"and {more} more: --json has them\n" if more > 0 else ""
    return [stage.CellTable(columns, rows[:ROWS]), note]


def _adversary_tables(found: Mapping[str, Any]) -> list[stage.CellTable | str]:
    if not found:
        return []
    rows = []
    for lie in found["lies"]:
        moved = f"moved {lie['moved_of_bound']:.2f} of its bound; refused: {lie['refused']}"
        rows.append((f"{lie['liars']} lying: {stage.readable(lie['lie'])}", moved))
    for trick in found["tricks"]:
        told = f"{trick['answer']}; {trick['sums']} sum of the window"
        rows.append((f"Leader: {stage.readable(trick['trick'])}", told))
    for fault in found["faults"]:
        sums = "true sums" if fault["true_sums"] else "FALSE SUMS"
        told = f"{fault['released_percent']:.0f} % of the reports released, {sums}"
        rows.append((f"{stage.readable(fault['fault'])}, {fault['size']:g}", told))
    columns = (
        stage.name_column(f"adversaries, in a cohort of {found['cohort']}", itemgetter(0)),
        Column("what came of it", itemgetter(1), folds=True),
    )
    return [stage.CellTable(columns, rows), ""]


def checks(summary: dict[str, Any]) -> list[str]:
    lines = [
        (
            f"{summary['windows_released']:,} of {counted(summary['windows'], 'window')} released, "
            f"{summary['reports_released']:,} reports in them; epsilon {summary['epsilon']:g} at "
            f"delta {summary['delta']:g} a host and week"
        )
    ]
    if summary.get("intervals"):
        held = 100 * summary["intervals_held"] / summary["intervals"]
        lines.append(
            f"{held:.1f} % of {summary['intervals']:,} intervals hold the truth; 95 % are meant to"
        )
        lines.append(f"by section, worst first: {percents(summary['coverage'])}")
    if summary["bias_bounds"]:
        told = ", ".join(f"{stage.readable(k)} {v:,.0f}" for k, v in summary["bias_bounds"].items())
        lines.append(
            "beyond their intervals, numbers of hosts may be low on average, as a host that has "
            f"more than it may report left some out: by at most (95 %) {told}"
        )
    if summary.get("standard_error_points") is not None:
        lines.append(
            f"standard error {summary['standard_error_points']:.2f} points a window, "
            f"{summary['standard_error_points_mean']:.2f} of the mean"
        )
    if summary["refused"]:
        lines.append(f"reports refused or withheld: {summary['refused']}")
    if summary["kept_back"]:
        lines.append(f"windows of which nothing was released: {summary['kept_back']}")
    recorded = summary["recorded_share_of_busy_gpus"]
    if recorded is not None:
        lines.append(
            f"{100 * recorded:.0f} % of the busy GPUs run an application as it was recorded; the "
            "rest are variants by rule (docs/simulator-model.md)"
        )
    return lines


def next_commands(summary: dict[str, Any], folder: Path) -> list[stage.NextCommand]:
    other = next(name for name in names() if name != summary["scenario"])
    sql = (
        f"import pandas; t = pandas.read_parquet('{stage.near(folder / 'cells.parquet')}'); "
        "print(t[t.section == 'kernel_mix'].groupby('cell')[['truth', 'released']].sum())"
    )
    causes = f"pointillist causes --store {stage.near(folder / RELEASES)}"
    return [
        ("truth and release side by side", f'.venv/bin/python -c "{sql}"'),
        *([("how many hosts had which trouble", causes)] if summary["causes"] else []),
        ("another scenario", f"pointillist simulate {other} --hours 0.2"),
        ("many of them, with a report", "pointillist experiment docs/experiments/report.toml"),
    ]
