"""Root causes and hardware faults as released, beside what was injected.

The table is the aggregator's own (`aggregator.statistics.causes`); what is added is what only a
simulation knows: whom each cause truly struck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from aggregator.statistics.causes import CAUSE_SECTIONS, CauseRow, CauseWindow
from aggregator.statistics.causes import cause_table as released_table
from aggregator.statistics.correction import Detector, Reported
from privacy.calibrate import WEEK_S

from .truth import TruthCell

SECTIONS: Final = CAUSE_SECTIONS


@dataclass(frozen=True, slots=True)
class TrueCause:
    """One cause: hosts that it truly struck, and what was released of it.

    row     of the released table; None where the window was not released
    shown   what a person is given: a number with half of its 95 % interval, or what it is under
    """

    cause: str
    true_hosts: int
    row: CauseRow | None
    shown: str

    @property
    def told(self) -> bool:
        """Whether it is told from zero, and given a number."""
        return self.row is not None and self.row.told


@dataclass(frozen=True, slots=True)
class TrueTable:
    """One window's causes, the most hosts first.

    missed      causes that struck somebody and are not told from zero
    false       causes that are shown and struck nobody
    bias_bound  hosts that what was released may lack, see `aggregator.statistics.causes.CauseTable`
    """

    section: str
    series: str
    window_start_s: int
    windows: int
    n: int
    rows: tuple[TrueCause, ...]
    missed: int
    false: int
    reason: str
    bias_bound: float | None

    @property
    def shown(self) -> tuple[TrueCause, ...]:
        """The rows that are drawn as numbers."""
        return tuple(row for row in self.rows if row.told)


def cause_table(
    cells: Sequence[TruthCell],
    section: str,
    detector: Detector | None = None,
    agents_model: str | None = None,
) -> TrueTable:
    """Make the table of one section of one window.

    cells       of one window (`truth_cells`)
    detector, agents_model  what it is corrected by, see `aggregator.statistics.causes.cause_table`
    Raises      ValueError when the window has no such section
    """
    own = [cell for cell in cells if cell.section == section]
    if not own:
        raise ValueError(f"expected cells of {section!r}, got none")
    first, true = own[0], {cell.cell: round(cell.truth) for cell in own}
    if first.released is None:
        shown = f"not released ({first.reason})"
        rows = [TrueCause(name, hosts, None, shown) for name, hosts in true.items()]
        rows.sort(key=lambda row: (-row.true_hosts, row.cause))
    else:
        released = released_table(_window(own), None, detector, agents_model)
        rows = [TrueCause(row.cause, true[row.cause], row, _shown(row)) for row in released.rows]
    return TrueTable(
        section,
        first.series,
        first.window_start_s,
        first.windows,
        first.n,
        tuple(rows),
        sum(not row.told and row.true_hosts > 0 for row in rows),
        sum(row.told and row.true_hosts == 0 for row in rows),
        first.reason,
        first.bias_bound,
    )


def _window(cells: Sequence[TruthCell]) -> CauseWindow:
    """What was released, as the aggregator has it; rates are those of a week."""
    first = cells[0]
    return CauseWindow(
        first.series,
        0,
        first.window_start_s,
        WEEK_S,
        first.section,
        tuple(cell.cell for cell in cells),
        Reported(
            first.n,
            np.array([cell.released for cell in cells], dtype=np.float64),
            np.array([cell.standard_error for cell in cells], dtype=np.float64),
        ),
        first.bias_bound,
    )


def _shown(row: CauseRow) -> str:
    if not row.told:
        return f"< {row.most:.0f}"
    return f"{row.hosts:.0f} ± {1.96 * row.standard_error:.0f}"
