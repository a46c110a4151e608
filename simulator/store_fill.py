"""Fills a folder of releases with weeks of a simulated fleet: packs, suppressed windows, causes.

A run that was cut off goes on with the first week (of longer windows: year) that is not written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from aggregator.protocol.released import SuppressedWindow
from aggregator.releases.cause_files import FOLDER as CAUSES_FOLDER
from aggregator.releases.packs import active_pack
from aggregator.releases.period_pack import (
    series_period,
    write_causes,
    write_period,
    write_suppressed,
)
from aggregator.releases.release_files import (
    NAME,
    SUPPRESSED_FOLDER,
    SimulatedMark,
    read_mark,
    write_mark,
)
from aggregator.releases.window_files import PACKED
from simulator.engine.interface import WindowOutcome
from simulator.engine.simulation import Due, Simulation, release_of

FIDELITY: Final = "noise"
"""The cheapest that is honest: see docs/simulator-model.md."""


class AnotherStore(ValueError):
    """A folder holds releases of another run, or of a fleet."""


@dataclass(frozen=True, slots=True)
class Filled:
    due: Due
    released: int
    suppressed: int


class StoreFill:
    def __init__(self, simulation: Simulation, folder: Path, weeks: float) -> None:
        """Look at what is there. Raises AnotherStore, MarkUnreadable."""
        scenario = simulation.scenario
        wanted = SimulatedMark(
            scenario.name, simulation.plan.name, scenario.hosts,
            simulation.model.inventory.total_gpus, FIDELITY, scenario.seed, weeks,
            simulation.fingerprint,
        )  # fmt: skip
        self.mark = read_mark(folder) or wanted
        if self.mark.fingerprint != wanted.fingerprint:
            raise AnotherStore(
                f"{folder}: expected a store of this run, got {self.mark.line}: name another folder"
            )
        if not (folder / NAME).exists() and any(folder.glob("*")):
            raise AnotherStore(f"{folder}: expected a new or empty folder, found files in it")
        self._simulation, self._folder = simulation, folder
        write_mark(folder, self.mark)

    def steps(self) -> Iterator[Filled]:
        open_periods: dict[str, tuple[str, list[WindowOutcome]]] = {}
        for due, outcomes in self._simulation.apart(self._is_done):
            for outcome in outcomes:
                series, period = due.series, series_period(outcome.start, due.window_s)
                before = open_periods.get(series)
                if before is not None and before[0] != period:
                    self._write(series, *before)
                    before = None
                if before is None:
                    before = open_periods[series] = (period, [])
                before[1].append(outcome)
            released = sum(outcome.released is not None for outcome in outcomes)
            yield Filled(due, released, len(outcomes) - released)
        for series, found in open_periods.items():
            self._write(series, *found)

    def _is_done(self, due: Due) -> bool:
        last_s = due.end_s - due.window_s
        periods = {series_period(start, due.window_s) for start in (due.start_s, last_s)}
        return all(f"{due.series}/{period}" in self.mark.done for period in periods)

    def _write(self, series: str, period: str, outcomes: list[WindowOutcome]) -> None:
        """Write a period as a whole: what a cut-off run left of it goes first."""
        name = f"{series}/{period}"
        if name in self.mark.done:
            return
        for part in ("", SUPPRESSED_FOLDER, CAUSES_FOLDER):
            if (pack := active_pack(self._folder / part, series, period)) is not None:
                shutil.rmtree(pack.path)
        catalogue = self._simulation.catalogue
        releases = [release_of(outcome) for outcome in outcomes if outcome.released is not None]
        kept_back = [_suppressed(outcome) for outcome in outcomes if outcome.released is None]
        if kept_back:
            write_suppressed(self._folder, kept_back)
        if releases:
            write_period(self._folder, catalogue, releases)
            write_causes(self._folder, catalogue, releases)
        self.mark = replace(self.mark, done=(*self.mark.done, name))
        write_mark(self._folder, self.mark)


def _suppressed(outcome: WindowOutcome) -> SuppressedWindow:
    task = outcome.task
    return SuppressedWindow(
        task.series, 0, outcome.start, task.window_s, task.version, outcome.reason,
        outcome.reporting, task.n_min, float(outcome.start + task.window_s + task.lateness_s),
        task.domain,
    )  # fmt: skip


def store_bytes(folder: Path) -> tuple[int, int]:
    found = [path for path in folder.rglob(f"{PACKED}/**/*") if path.is_file()]
    return len(found), sum(path.stat().st_size for path in found)
