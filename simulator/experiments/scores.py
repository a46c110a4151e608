"""What a run comes to: errors of one section against the truth, coverage, losses and cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator.cell_view import CellView, judged, listed, views_of
from simulator.engine.simulation import Step
from simulator.outcome.coverage import CoverageTally
from simulator.outcome.truth import TruthCell
from wire.catalogue import UNMEASURED
from wire.task import SectionKind

DAY_S: Final = 86_400
POINTS: Final = 100.0
SHOWN: Final = 16
"""Cells of a row, the largest: what a figure of a mix needs."""


Floats = NDArray[np.float64]


class SectionMean:
    """Shares of one section, window by window; independent noise shrinks with their root.

    A share is of the true whole, so that an error is the noise of its cell alone.
    """

    def __init__(self, section: str) -> None:
        self.section = section
        self.windows = 0
        self.latest: list[CellView] = []
        self._names: list[str] = []
        self._sums = np.zeros((3, 0))
        self._squares = 0.0
        self._errors = 0.0

    def add(self, cells: Sequence[TruthCell]) -> None:
        self.add_views(views([cell for cell in cells if cell.section == self.section]))

    def add_views(self, seen: list[CellView]) -> None:
        if not seen:
            return
        if [view.cell for view in seen] != self._names:
            if self.windows:
                return  # a group of cells that no host belongs to any more
            self._names = [view.cell for view in seen]
            self._sums = np.zeros((3, len(seen)))
        values = np.array([(v.share, v.standard_error**2, v.truth) for v in seen]).T
        self._sums += values
        self._squares += float(np.mean((values[0] - values[2]) ** 2))
        self._errors += float(np.mean(np.sqrt(values[1])))
        self.windows += 1
        self.latest = judged(seen)

    def mean(self) -> list[CellView]:
        if not self.windows:
            return []
        share, variance, truth = self._sums
        error = np.sqrt(variance) / self.windows
        columns = (share / self.windows, error, truth / self.windows)
        means = zip(self._names, *columns, strict=True)
        return judged([CellView(name, *map(float, values)) for name, *values in means])

    def row(self) -> dict[str, Any]:
        """Give errors in points (hundredths of the whole), of a window and of the mean."""
        if not self.windows:
            return {}
        mean = self.mean()
        off = np.array([view.share - view.truth for view in mean])
        present = [view for view in mean if view.truth > 0 and not view.cell.endswith(UNMEASURED)]
        return {
            "standard_error_points": POINTS * self._errors / self.windows,
            "error_points": POINTS * float(np.sqrt(self._squares / self.windows)),
            "standard_error_points_mean": POINTS
            * float(np.mean([view.standard_error for view in mean])),
            "error_points_mean": POINTS * float(np.sqrt(np.mean(off**2))),
            "classes_true": len(present),
            "classes_seen": sum(view.told for view in present),
            "cells": [asdict(v) for v in sorted(mean, key=lambda v: -v.truth)[:SHOWN]],
        }


def views(cells: Sequence[TruthCell]) -> list[CellView]:
    """Give a section's released cells as shares of their true wholes; without a whole left out."""
    wholes = {
        _group(cell): cell.truth / cell.true_share
        for cell in cells
        if cell.true_share and cell.truth > 0
    }
    found = []
    for cell in cells:
        whole = wholes.get(_group(cell))
        if whole is not None:
            found += views_of([cell], whole)
    return found


def _group(cell: TruthCell) -> str:
    """Name the cells that are shares of the same whole; each mean is of its own full scale."""
    return cell.cell if cell.kind == SectionKind.MEAN.value else cell.cell.rpartition("/")[0]


@dataclass(slots=True)
class Scores:
    """Everything that is counted over a run's windows.

    hosts       of the scenario
    refused     reason -> reports that the parties refused, or that hosts withheld
    kept_back   reason -> windows of which nothing was released
    stages      stage -> CPU seconds
    """

    section: SectionMean
    hosts: int
    coverage: CoverageTally = field(default_factory=CoverageTally)
    refused: Counter[str] = field(default_factory=Counter)
    kept_back: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    windows: int = 0
    released: int = 0
    reports: int = 0
    reports_released: int = 0
    wall_s: float = 0.0
    _cpu_s: list[float] = field(default_factory=list)

    def add(self, step: Step, cells: Sequence[TruthCell]) -> None:
        outcome = step.outcome
        self.windows += outcome.windows
        self.reports += outcome.reporting
        self.reports_released += outcome.n
        self.refused.update(dict(outcome.refused))
        self.stages.update(dict(outcome.stage_s))
        self.wall_s += step.wall_s
        self._cpu_s.append(sum(outcome.stage_s.values()))
        if outcome.released is None:
            self.kept_back[outcome.reason] += outcome.windows
            return
        self.released += outcome.windows
        self.section.add(cells)
        self.coverage.add(cells)

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "windows": self.windows,
            "windows_released": self.released,
            "reports": self.reports,
            "reports_released": self.reports_released,
            "reports_refused": self.refused.total(),
            "refused": listed(self.refused),
            "kept_back": listed(self.kept_back),
            "wall_s": self.wall_s,
            "cpu_s_window": median(self._cpu_s) if self._cpu_s else None,
            "stages": [{"stage": k, "cpu_s": s} for k, s in sorted(self.stages.items())],
            **self.section.row(),
        }
        if row["cpu_s_window"] is not None:
            row["cpu_us_host_window"] = 1e6 * row["cpu_s_window"] / self.hosts
        if self.released:
            whole = self.coverage.result()[0].values
            row |= {"intervals_held": whole.hits, "intervals": whole.trials}
        return row
