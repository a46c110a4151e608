"""Join what the fleet released with what the simulated hosts truly did, window by window.

The truth is known only because this is a demo: simulated hosts write their own sums down. This
host's live agent does not, so the truth leaves it out (at most one host in the cohort).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pandas as pd

NORMAL: Final = NormalDist()
Z95: Final = NORMAL.inv_cdf(0.975)
PLUS_MINUS: Final = "± is half of the 95 % interval: 1.96 standard errors"
"""What ± means wherever the demo writes it, and how long its error bars are to either side."""


@dataclass(frozen=True, slots=True)
class CellView:
    """One released cell beside its truth; every number is a share of the section's whole.

    truth is None while the hosts' own sums have not been written yet.
    """

    cell: str
    released: float
    standard_error: float
    truth: float | None

    @property
    def below_noise(self) -> bool:
        """Whether the released share is under two standard errors."""
        return self.released < 2 * self.standard_error

    @property
    def rank(self) -> float:
        """Where it stands in a list: by the larger of its truth and what was released as a number.

        By the truth alone a false discovery would stand last, and be cut off.
        """
        released = 0.0 if self.below_noise else self.released
        return self.released if self.truth is None else max(self.truth, released)

    @property
    def worth_showing(self) -> bool:
        """Whether something truly happened there, or the release says so."""
        return bool(self.truth) or not self.below_noise

    @property
    def covered(self) -> bool | None:
        """Whether the 95 % interval holds the truth."""
        if self.truth is None:
            return None
        return abs(self.released - self.truth) <= Z95 * self.standard_error


@dataclass(frozen=True, slots=True)
class Struck:
    """One release of an event section: its cells as shares of the hosts accepted in its window."""

    hosts: int
    views: list[CellView]


@dataclass(frozen=True, slots=True)
class ReleasedCell:
    """One row of the released table: value and standard error in the section's unit."""

    cell: str
    value: float
    standard_error: float
    hosts: int


@dataclass(slots=True)
class DemoTally:
    """Everything the demo has seen so far.

    wholes     section -> what one host can contribute at most, in the released unit; shares are
               of n x whole
    layout     series -> (section, cell, released units per base unit) of every coordinate of a row
    truths     (series, window start) -> (hosts, sums in base units), over all processes
    """

    wholes: dict[str, float]
    layout: dict[str, list[tuple[str, str, float]]]
    truths: dict[tuple[str, int], tuple[int, list[int]]] = field(default_factory=dict)
    released: dict[tuple[str, str, int], list[ReleasedCell]] = field(default_factory=dict)

    def load_releases(self, frame: pd.DataFrame) -> None:
        """Index the released table by series, section and window."""
        columns = [
            "series",
            "section",
            "window_start",
            "cell",
            "value",
            "standard_error",
            "n_hosts",
        ]
        released: defaultdict[tuple[str, str, int], list[ReleasedCell]] = defaultdict(list)
        for series, section, start, cell, value, error, hosts in frame[columns].itertuples(
            index=False, name=None
        ):
            key = (str(series), str(section), int(start.timestamp()))
            released[key].append(ReleasedCell(str(cell), float(value), float(error), int(hosts)))
        self.released = dict(released)

    def windows(self, series: str) -> list[int]:
        """Start seconds of the windows of a series that have been released, in order."""
        return sorted({window for owner, _, window in self.released if owner == series})

    def hosts(self, series: str, window: int) -> int:
        """Accepted hosts of one released window."""
        return next(
            cells[0].hosts
            for (owner, _, start), cells in self.released.items()
            if owner == series and start == window
        )

    def struck(self, series: str, section: str, window: int) -> Struck:
        """Cells of an event section with the hosts of its own window; nothing before its release.

        Windows of the same span have other hosts in each series: their reports are dropped alone.
        """
        rows = self.released.get((series, section, window), [])
        return Struck(rows[0].hosts if rows else 0, self.section(series, section, window))

    def section(self, series: str, section: str, window: int) -> list[CellView]:
        """Cells of one section in one window, as shares of what the accepted hosts could reach."""
        truth = self._truth(series, section, window)
        return [
            _view(row, self.wholes[section] * row.hosts, truth)
            for row in self.released.get((series, section, window), [])
        ]

    def running_mean(self, series: str, section: str) -> list[CellView]:
        """Mean over all released windows; independent noise shrinks with their root."""
        seen: defaultdict[str, list[CellView]] = defaultdict(list)
        for window in self.windows(series):
            for view in self.section(series, section, window):
                seen[view.cell].append(view)
        return [_mean(cell, views) for cell, views in seen.items()]

    def coverage(self) -> tuple[int, int]:
        """How many 95 % intervals held the truth, and how many could be checked, of all."""
        checked = [
            view
            for series, section, window in self.released
            for view in self.section(series, section, window)
            if view.truth is not None
        ]
        return sum(1 for view in checked if view.covered), len(checked)

    def _truth(self, series: str, section: str, window: int) -> dict[str, float] | None:
        found = self.truths.get((series, window))
        if found is None:
            return None
        rows = zip(self.layout[series], found[1], strict=True)
        return {cell: value * scale for (owner, cell, scale), value in rows if owner == section}


def _view(row: ReleasedCell, whole: float, truth: dict[str, float] | None) -> CellView:
    known = None if truth is None else truth.get(row.cell, 0.0) / whole
    return CellView(row.cell, row.value / whole, row.standard_error / whole, known)


def _mean(cell: str, views: list[CellView]) -> CellView:
    count = len(views)
    truths = [view.truth for view in views if view.truth is not None]
    return CellView(
        cell,
        sum(view.released for view in views) / count,
        math.sqrt(sum(view.standard_error**2 for view in views)) / count,
        sum(truths) / len(truths) if len(truths) == count else None,
    )


def expected_above_noise(views: list[CellView]) -> float:
    """How many cells should stand above two standard errors, from the true mix and the noise."""
    return float(
        sum(
            NORMAL.cdf(view.truth / view.standard_error - 2)
            for view in views
            if view.truth is not None and view.standard_error > 0
        )
    )


def read_truths(folder: Path, processes: int) -> dict[tuple[str, int], tuple[int, list[int]]]:
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
