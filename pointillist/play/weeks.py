"""Plays weeks of a fleet into a folder of releases, as a Leader's would be."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from edge_agent.local.words import counted
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import Simulation
from simulator.store_fill import FIDELITY, StoreFill, store_bytes
from wire.catalogue import Catalogue

from .setup import Setup
from .stage import Summary

SCENARIO: Final = "eight_weeks"
"""Played where none is named."""
WEEK_S: Final = 604_800
DAY_S: Final = 86_400
MINUTE_S: Final = 60


class StorePlayer:
    def __init__(self, setup: Setup, folder: Path, processes: int) -> None:
        """Raises ScenarioError, ParameterError, JournalError, AnotherStore, MarkUnreadable."""
        settings = EngineSettings(noise=Noise.SEEDED, processes=processes)
        self._simulation = Simulation(
            setup.scenario, setup.plan, Catalogue.load(), settings, plays=setup.plays
        )
        self._folder = folder
        self._weeks = setup.scenario.duration_s / WEEK_S
        self._fill = StoreFill(self._simulation, folder, self._weeks)
        self._released = self._suppressed = 0

    def play(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Play what is missing. Raises WorkerFailed, CompactionUnderWay, OSError."""
        say(self._fill.mark.line)
        began, first_s, day = time.perf_counter(), None, None
        played_s = 0
        for step in self._fill.steps():
            self._released += step.released
            self._suppressed += step.suppressed
            if first_s is None:
                first_s = step.due.start_s
            played_s = max(played_s, step.due.end_s - first_s)
            if day != step.due.end_s // DAY_S:
                day = step.due.end_s // DAY_S
                say(self._line(step.due.end_s, played_s, time.perf_counter() - began))
        return self._summary(played_s, time.perf_counter() - began)

    def _line(self, at_s: int, played_s: int, wall_s: float) -> str:
        first, end = self._simulation.span
        left_s = (end - at_s) * wall_s / max(played_s, 1)
        return (
            f"day {(at_s - first) // DAY_S} of {(end - first) // DAY_S}: "
            f"{_weeks_per_minute(played_s, wall_s):.2f} weeks a minute, {left_s / MINUTE_S:.0f} "
            "minutes left"
        )

    def _summary(self, played_s: int, wall_s: float) -> dict[str, Any]:
        files, size = store_bytes(self._folder)
        mark = self._fill.mark
        return {
            "store": str(self._folder),
            "scenario": mark.scenario,
            "plan": mark.plan,
            "hosts": mark.hosts,
            "gpus": mark.gpus,
            "fidelity": FIDELITY,
            "seed": mark.seed,
            "weeks": self._weeks,
            "windows_released": self._released,
            "windows_suppressed": self._suppressed,
            "files": files,
            "bytes": size,
            "weeks_played": played_s / WEEK_S,
            "seconds": wall_s,
            "simulated_weeks_per_minute": _weeks_per_minute(played_s, wall_s),
        }


def _weeks_per_minute(played_s: float, wall_s: float) -> float:
    return played_s / WEEK_S / (wall_s / MINUTE_S) if wall_s else 0.0


def store_end(summary: dict[str, Any]) -> Summary:
    windows, folder = counted(summary["windows_released"], "window"), summary["store"]
    sql = "SELECT outcome, reason, count(*) AS windows FROM windows GROUP BY ALL"
    lines = (
        (
            f"{summary['weeks']:g} weeks of {summary['hosts']:,} simulated hosts, fidelity "
            f"{summary['fidelity']}: what an hour's first minute measures stands for the hour, "
            "noise is each window's own"
        ),
        (
            f"{windows} released and {summary['windows_suppressed']:,} suppressed in this run, "
            f"{summary['simulated_weeks_per_minute']:.2f} simulated weeks a minute"
        ),
        (
            f"{summary['files']:,} files, {summary['bytes'] / 1e6:,.0f} MB; the folder says that "
            "it is simulated, and so does every command that reads it"
        ),
    )
    return Summary(
        checks=[f"- {line}" for line in lines],
        files={"releases": folder},
        commands=(
            ("how its windows ended", f'pointillist query --store {folder} "{sql}"'),
            ("how many hosts had which trouble", f"pointillist causes --store {folder}"),
        ),
    )
