"""The true value beside the released one, cell by cell, with intervals of 95 %."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from aggregator.protocol.released import CoarseCounts
from aggregator.releases.cause_files import reported_of
from aggregator.statistics.causes import CAUSE_SECTIONS, CauseRow, CauseWindow
from aggregator.statistics.causes import cause_table as released_table
from aggregator.statistics.statistics import (
    MODEL_AXIS,
    RESERVED,
    estimate,
    full_scale,
    released_units,
)
from privacy.calibrate import WEEK_S
from simulator.engine.interface import WindowOutcome
from transport.process.supervision import Closing
from wire.catalogue import LEFT_OUT, NO_CLASSES, OF_HOSTS, UNMEASURED, Catalogue, Section
from wire.task import CHECK_WORDS, SectionKind, SectionSpec

_ROWS: Final = 1 << 16
"""Cells that are held before they are written."""


@dataclass(frozen=True, slots=True)
class TruthCell:
    """One cell of one window, or of a row of windows.

    n                   accepted hosts, 0 without a release
    truth               sum over the hosts that reported in time, in `unit`, before any clipping; a
                        mean is that of min(x, full scale), by definition
    true_share          of the same whole as `share`; None where that whole is zero
    released ...        as aggregator.statistics.statistics.Cell has them; None without a release
    reason              why nothing was released, "" for a release
    """

    series: str
    window_start_s: int
    windows: int
    n: int
    section: str
    cell: str
    kind: str
    unit: str
    truth: float
    true_share: float | None
    released: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    share: float | None
    share_low: float | None
    share_high: float | None
    below_noise: bool | None
    bias_bound: float | None
    reason: str


_ARROW: Final = {
    "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "float | None": pa.float64(),
    "bool | None": pa.bool_(),
}  # fmt: skip
SCHEMA: Final = pa.schema([(column.name, _ARROW[str(column.type)]) for column in fields(TruthCell)])


_OF_RELEASE: Final = (
    "standard_error", "low", "high", "share", "share_low", "share_high", "below_noise",
    "bias_bound",
)  # fmt: skip


def truth_cells(outcome: WindowOutcome, catalogue: Catalogue) -> list[TruthCell]:
    """Join an outcome's truth with its release, if any, by the production estimator."""
    bare = _bare_cells(outcome, catalogue)
    if outcome.released is None:
        return bare
    counts = CoarseCounts.of(outcome.task, outcome.n, outcome.capacity)
    cells = estimate(outcome.task, catalogue, outcome.released, counts)
    return with_release(bare, cells)


def with_release(bare: Iterable[TruthCell], cells: Iterable[Any]) -> list[TruthCell]:
    """Put beside each cell's truth what was released of it."""
    known = {(cell.section, cell.cell): cell for cell in cells}
    joined = []
    for truth in bare:
        cell = known[truth.section, truth.cell]
        own = {name: getattr(cell, name) for name in _OF_RELEASE}
        joined.append(replace(truth, released=cell.value, **own))
    return joined


class TruthWriter(Closing):
    """Appends windows to one Parquet file; use it in a `with`."""

    def __init__(self, path: Path, catalogue: Catalogue) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._catalogue, self._cells = catalogue, list[TruthCell]()
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")

    def add(self, outcome: WindowOutcome) -> list[TruthCell]:
        cells = truth_cells(outcome, self._catalogue)
        self._cells += cells
        if len(self._cells) >= _ROWS:
            self._flush()
        return cells

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        rows, self._cells = self._cells, []
        if rows:
            self._writer.write_table(pa.Table.from_pylist([asdict(r) for r in rows], SCHEMA))


def _bare_cells(outcome: WindowOutcome, catalogue: Catalogue) -> list[TruthCell]:
    """Give the truth of every named cell, in the estimator's order, without a release."""
    found = []
    task, nothing = outcome.task, (None,) * 9
    for spec, place in zip(task.sections, task.slices().values(), strict=True):
        section = catalogue.section_of(spec)
        raw = outcome.truth[place.start - CHECK_WORDS : place.stop - CHECK_WORDS]
        value, share = _section_truth(section, spec, raw, outcome.reporting)
        units = released_units(section, spec)
        for at, cell in enumerate(section.released_cells):
            if cell == LEFT_OUT or any(part.startswith(RESERVED) for part in cell.split("/")):
                continue
            head = (task.series, outcome.start, outcome.windows, outcome.n)
            what = (spec.name, cell, spec.kind.value, units[at][0])
            known = None if np.isnan(share[at]) else float(share[at])
            found.append(TruthCell(*head, *what, float(value[at]), known, *nothing, outcome.reason))
    return found


def _section_truth(
    section: Section, spec: SectionSpec, raw: NDArray[np.int64], reporting: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the truth in readable units, and its share of the section's whole."""
    scale = np.array([per_base for _, per_base in released_units(section, spec)])
    if spec.kind in OF_HOSTS:
        # A set indicator is 1 here, and worth the cap in a report.
        set_once = spec.kind is SectionKind.INDICATORS
        value = raw * (1.0 if set_once else scale)
        hosts, each = reporting, 1 if set_once else full_scale(section, spec)
        share = raw.astype(np.float64)
        if section.counts_unmeasured:
            hole = section.index(UNMEASURED)
            hosts -= int(raw[hole]) // spec.unmeasured
            value[hole], share[hole] = hosts, np.nan
        return value, share / max(each * hosts, 1)
    return raw * scale, _shares_of_measured(section, raw)


def _shares_of_measured(section: Section, raw: NDArray[np.int64]) -> NDArray[np.float64]:
    """Shares of what was measured, by GPU model where the section is; unmeasured: of everything."""
    by_model = section.axes[0] == MODEL_AXIS and len(section.axes) > 1
    groups = np.array([cell.split("/", 1)[0] if by_model else "" for cell in section.cells])
    hole = np.array([cell.rsplit("/", 1)[-1] == UNMEASURED for cell in section.cells])
    share = np.full(len(raw), np.nan)
    for group in dict.fromkeys(groups.tolist()):
        members = groups == group
        measured, wall = int(raw[members & ~hole].sum()), int(raw[members].sum())
        if measured:
            share[members] = raw[members] / measured
        if wall:
            share[members & hole] = raw[members & hole] / wall
    return share


SECTIONS: Final = CAUSE_SECTIONS


@dataclass(frozen=True, slots=True)
class TrueCause:
    """One cause: hosts that it truly struck, the released row if any, and what is shown of it."""

    cause: str
    true_hosts: int
    row: CauseRow | None
    shown: str

    @property
    def told(self) -> bool:
        return self.row is not None and self.row.significant


def cause_table(cells: Sequence[TruthCell], section: str) -> list[TrueCause]:
    """Make the table of one section of one window. Raises ValueError without such a section."""
    found = [cell for cell in cells if cell.section == section]
    own = [cell for cell in found if cell.cell not in NO_CLASSES]
    if not own:
        raise ValueError(f"expected cells of {section!r}, got none")
    first, true = own[0], {cell.cell: round(cell.truth) for cell in own}
    if first.released is None:
        shown = f"not released ({first.reason})"
        rows = [TrueCause(name, hosts, None, shown) for name, hosts in true.items()]
        return sorted(rows, key=lambda row: (-row.true_hosts, row.cause))
    every, rows_of = (
        [asdict(cell) | {"value": cell.released, "n_hosts": cell.n} for cell in some]
        for some in (found, own)
    )
    # What was released, as the aggregator has it; rates are those of a week.
    window = CauseWindow(
        first.series, 0, first.window_start_s, WEEK_S, section, tuple(true),
        reported_of(every, rows_of), first.bias_bound,
    )  # fmt: skip
    told = []
    for row in released_table(window).rows:
        shown = f"{row.hosts:.0f} ± {1.96 * row.standard_error:.0f}"
        shown = shown if row.significant else f"< {row.most:.0f}"
        told.append(TrueCause(row.cause, true[row.cause], row, shown))
    return told
