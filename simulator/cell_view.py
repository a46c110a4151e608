"""What screens, charts and scores show: cells beside their truth, as shares, and counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aggregator.statistics.discoveries import is_significant, q_values
from aggregator.statistics.ratios import normal_quantile

if TYPE_CHECKING:  # the demo's screen needs no Parquet before its fleet has started
    from simulator.outcome.truth import TruthCell


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell's released share, 0 .. 1, its standard error and the truth, all of the same whole.

    q_value     see `judged`; before it, nothing is told from zero
    """

    cell: str
    share: float
    standard_error: float
    truth: float
    q_value: float = 1.0

    @property
    def told(self) -> bool:
        return is_significant(self.q_value)

    @property
    def half(self) -> float:
        return normal_quantile() * self.standard_error

    @property
    def most(self) -> float:
        """Upper end of its 95 % interval; of a negative share, that of zero."""
        return max(self.share, 0.0) + self.half

    @property
    def rank(self) -> float:
        """By the larger of its truth and what was released: a false discovery is not the last."""
        return max(self.truth, self.share if self.told else 0.0)

    @property
    def worth_showing(self) -> bool:
        return bool(self.truth) or self.told


def judged(family: Sequence[CellView]) -> list[CellView]:
    """Tell from zero what differs from it among the cells of one section, looked at together."""
    shares = np.array([view.share for view in family])
    found = q_values(shares, np.array([view.standard_error for view in family]))
    return [replace(view, q_value=float(q)) for view, q in zip(family, found, strict=True)]


def views_of(cells: Iterable[TruthCell], whole: float) -> list[CellView]:
    """Give released cells as shares of one whole, which is in the cells' unit; not judged yet."""
    return [
        CellView(cell.cell, cell.released / whole, cell.standard_error / whole, cell.truth / whole)
        for cell in cells
        if cell.released is not None and cell.standard_error is not None
    ]


def ranked(views: Sequence[CellView]) -> list[CellView]:
    shown = [view for view in views if view.worth_showing]
    return sorted(shown, key=lambda view: view.rank, reverse=True)


def listed(counts: Mapping[str, int]) -> str:
    """`reason 12, other 3`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
