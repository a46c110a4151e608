"""Join what the fleet released with what the simulated hosts truly did, window by window.

The truth is known only because this is a demo: simulated hosts write their own sums down. This
host's live agent does not, so the truth leaves it out (at most one host in the cohort).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from simulator.cell_view import CellView, judged, views_of
from simulator.engine.interface import WindowOutcome
from simulator.experiments.scores import SectionMean
from simulator.outcome.coverage import CoverageTally, SectionCoverage
from simulator.outcome.truth import truth_cells, with_release
from wire.catalogue import MEASURED, Catalogue
from wire.task import SectionKind, Task

from .demo_plan import EVENTS, GPUS_PER_HOST
from .stage import Struck

MIX: Final = "kernel_mix"

Truths = Mapping[tuple[str, int], tuple[int, list[int]]]
"""(series, window start) -> (hosts, sums in base units of the task's row), over all processes."""


class DemoTally:
    """Every window that was released and whose truth is known.

    mean        of the kernel mix over its windows
    bias_bounds of the newest window of each event section: hosts that a cell of it may lack
    """

    def __init__(self, tasks: Sequence[Task], catalogue: Catalogue) -> None:
        self._tasks = {task.series: task for task in tasks}
        self._catalogue = catalogue
        self._hosts: dict[tuple[str, int], int] = {}
        self._mix: dict[int, list[CellView]] = {}
        self._struck: dict[str, Struck] = {}
        self._coverage = CoverageTally()
        self.bias_bounds: dict[str, float] = {}
        self.mean = SectionMean(MIX)

    def take(self, releases: pd.DataFrame, truths: Truths) -> None:
        """Add the windows of the released table that were not there before."""
        windows: Any = releases.groupby(["series", "window_start"])
        for (series, start), rows in windows:
            key = series, int(start.timestamp())
            if key not in self._hosts and key in truths:
                self._add(key, rows, *truths[key])

    def _add(self, key: tuple[str, int], rows: pd.DataFrame, hosts: int, sums: list[int]) -> None:
        (series, start), accepted = key, int(rows["n_hosts"].iloc[0])
        task, truth = self._tasks[series], np.array(sums, dtype=np.int64)
        bare = WindowOutcome(start, None, accepted, {}, "", task, {}, truth, hosts)
        cells = with_release(truth_cells(bare, self._catalogue), rows.itertuples())
        self._coverage.add(cells)
        self._hosts[key] = accepted
        for spec in task.sections:
            own = [c for c in cells if c.section == spec.name and c.cell != MEASURED]
            if spec.name == MIX:
                whole = accepted * GPUS_PER_HOST * task.window_s
                self._mix[start] = judged(views_of(own, whole))
                self.mean.add_views(self._mix[start])
            elif spec.kind is SectionKind.INDICATORS:
                self._struck[spec.name] = Struck(accepted, judged(views_of(own, accepted)))
                self.bias_bounds[spec.name] = own[0].bias_bound or 0.0

    def windows(self, series: str) -> list[int]:
        """Start seconds of the windows of a series so far, in order."""
        return sorted(start for owner, start in self._hosts if owner == series)

    def hosts(self, series: str, window: int) -> int:
        return self._hosts[series, window]

    @property
    def mix(self) -> list[list[CellView]]:
        """The kernel mix of each window, in order, as shares of what its hosts could reach."""
        return [self._mix[window] for window in sorted(self._mix)]

    @property
    def events(self) -> dict[str, Struck]:
        """Cells of each event section with the hosts of its own window; none before its release.

        Windows of the same span have other hosts in each series: their reports are dropped alone.
        """
        return {name: self._struck.get(name, Struck(0, [])) for name in EVENTS}

    def coverage(self) -> tuple[SectionCoverage, ...]:
        """How often 95 % intervals held the truth: all of them, then by section, worst first."""
        return self._coverage.result() if self._hosts else ()


def read_truths(folder: Path, processes: int) -> Truths:
    """Add up the sums that the processes wrote; a window counts once every process has written it.

    Each line: {"series": str, "window": start second, "hosts": int, "sums": [int, ...]}, base units
    of the task's row.
    """
    totals: dict[tuple[str, int], tuple[int, list[int]]] = {}
    parts: defaultdict[tuple[str, int], int] = defaultdict(int)
    for path in sorted(folder.glob("truth-*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # still being written
            entry = json.loads(line)
            key = (entry["series"], entry["window"])
            hosts, sums = totals.get(key, (0, [0] * len(entry["sums"])))
            totals[key] = (
                hosts + entry["hosts"],
                [a + b for a, b in zip(sums, entry["sums"], strict=True)],
            )
            parts[key] += 1
    return {key: total for key, total in totals.items() if parts[key] == processes}
