"""Root causes and hardware faults as released, beside what was injected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aggregator.ratios import expected_by_chance

from .truth import TruthCell

SECTIONS: Final = ("incidents", "hardware_faults")
NOISE: Final = "below noise"


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause: hosts that it truly struck, and what was released of it.

    released ...    hosts; None where the window was not released
    shown           what a person is given: a number with its error, or that it is noise
    """

    cause: str
    true_hosts: int
    released: float | None
    standard_error: float | None
    below_noise: bool
    shown: str


@dataclass(frozen=True, slots=True)
class CauseTable:
    """One window's causes, the most hosts first.

    by_chance   rows that would pass for numbers if no host had been struck
    missed      causes that struck somebody and are below noise
    false       causes that are shown and struck nobody
    """

    section: str
    series: str
    window_start_s: int
    windows: int
    n: int
    rows: tuple[CauseRow, ...]
    by_chance: float
    missed: int
    false: int
    reason: str

    @property
    def shown(self) -> tuple[CauseRow, ...]:
        """The rows that are drawn as numbers."""
        return tuple(row for row in self.rows if not row.below_noise)


def cause_table(cells: Sequence[TruthCell], section: str) -> CauseTable:
    """Make the table of one section of one window.

    cells       of one window (`truth_cells`)
    Raises      ValueError when the window has no such section
    """
    own = [cell for cell in cells if cell.section == section]
    if not own:
        raise ValueError(f"expected cells of {section!r}, got none")
    rows = sorted((_row(cell) for cell in own), key=_order)
    first = own[0]
    return CauseTable(
        section,
        first.series,
        first.window_start_s,
        first.windows,
        first.n,
        tuple(rows),
        expected_by_chance(len(rows)),
        sum(row.below_noise and row.true_hosts > 0 for row in rows),
        sum(not row.below_noise and row.true_hosts == 0 for row in rows),
        first.reason,
    )


def _row(cell: TruthCell) -> CauseRow:
    below = cell.released is None or cell.below_noise is not False
    shown = NOISE
    if cell.released is None:
        shown = f"not released ({cell.reason})"
    elif not below:
        shown = f"{cell.released:.0f} ± {1.96 * (cell.standard_error or 0.0):.0f}"
    return CauseRow(cell.cell, round(cell.truth), cell.released, cell.standard_error, below, shown)


def _order(row: CauseRow) -> tuple[bool, float, int, str]:
    released = 0.0 if row.below_noise or row.released is None else row.released
    return row.below_noise, -released, -row.true_hosts, row.cause
