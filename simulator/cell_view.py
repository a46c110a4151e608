"""What screens, charts and scores show: cells beside their truth, as shares, and counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aggregator.ratios import BELOW_NOISE_ERRORS

if TYPE_CHECKING:  # the demo's screen needs no Parquet before its fleet has started
    from simulator.outcome import TruthCell


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell's released share, 0 .. 1, its standard error and the truth, all of the same whole."""

    cell: str
    share: float
    standard_error: float
    truth: float

    @property
    def below_noise(self) -> bool:
        """Whether it is under two standard errors: never drawn as a number."""
        return self.share < BELOW_NOISE_ERRORS * self.standard_error

    @property
    def rank(self) -> float:
        """Where it stands in a list: by the larger of its truth and what was released as a number.

        By the truth alone a false discovery would stand last, and be cut off.
        """
        return max(self.truth, 0.0 if self.below_noise else self.share)

    @property
    def worth_showing(self) -> bool:
        """Whether something truly happened there, or the release says so."""
        return bool(self.truth) or not self.below_noise


def views_of(cells: Iterable[TruthCell], whole: float) -> list[CellView]:
    """Give released cells as shares of one whole, which is in the cells' unit."""
    return [
        CellView(cell.cell, cell.released / whole, cell.standard_error / whole, cell.truth / whole)
        for cell in cells
        if cell.released is not None and cell.standard_error is not None
    ]


def ranked(views: Sequence[CellView]) -> list[CellView]:
    """Give the cells worth showing, largest by truth or by release first."""
    shown = [view for view in views if view.worth_showing]
    return sorted(shown, key=lambda view: view.rank, reverse=True)


def listed(counts: Mapping[str, int]) -> str:
    """`reason 12, other 3`."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
