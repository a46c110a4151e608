"""Write all windows of a series' period at once, as the pack that their files would end in.

For whoever has weeks of windows at hand: a simulation writes its store so. Numbers come from the
same estimate as a Leader's, and the pack is the same but for the order of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aggregator.protocol.released import ReleasedWindow, SuppressedWindow
from aggregator.statistics.causes import CAUSE_SECTIONS, CauseTable
from aggregator.statistics.correction import Detector
from aggregator.statistics.statistics import (
    CellBasis,
    basis_of,
    estimate,
    named_cells,
    released_units,
)
from wire.catalogue import Catalogue
from wire.task import Task

from .cause_files import FOLDER as CAUSES_FOLDER
from .cause_files import cause_columns, cause_path, tables_of
from .compaction import Compaction, PackRows
from .packs import CELL_SCHEMA, GROUP_CELLS, MEMBER_SCHEMA, period_of
from .release_files import (
    BASIS,
    SUPPRESSED_FOLDER,
    SUPPRESSED_SCHEMA,
    of_window,
    release_path,
    release_rows,
    suppressed_path,
    utc,
)


def series_period(window_start_s: int, window_s: int | None) -> str:
    """Name the period whose pack takes a window."""
    return period_of(utc(window_start_s).date(), window_s)


def write_period(folder: Path, catalogue: Catalogue, releases: Sequence[ReleasedWindow]) -> None:
    """Write the released windows of one task, cohort and period, in order, none of them known yet.

    Raises      ValueError for windows of several tasks or cohorts, OSError
    """
    task = releases[0].task
    if any((one.task, one.cohort) != (task, releases[0].cohort) for one in releases):
        raise ValueError("expected windows of one task and cohort, got several")
    period = series_period(releases[0].window_start_s, task.window_s)
    block = _Block.of(task, catalogue, releases)
    members = [
        _member(release_path(folder, task.series, one.cohort, start), one.cohort, start)
        | {"window_s": task.window_s, "n_hosts": one.n, "settled_at": utc(one.released_s)}
        for one in releases
        for start in [utc(one.window_start_s)]
    ]
    rows = PackRows(pa.Table.from_pylist(members, MEMBER_SCHEMA), cells=block.groups())
    Compaction(folder).add("", task.series, period, rows)


def write_causes(
    folder: Path,
    catalogue: Catalogue,
    releases: Sequence[ReleasedWindow],
    detector: Detector | None = None,
    agents_model: str | None = None,
) -> None:
    """Write the root-cause tables of windows of one period, where their task counts causes."""
    task = releases[0].task
    if not {spec.name for spec in task.sections} & set(CAUSE_SECTIONS):
        return
    records = [
        record
        for one in releases
        for record in release_rows(
            one, estimate(task, catalogue, one.vector, one.n, one.capacity)
        ).to_pylist()
    ]
    tables = tables_of(records, detector, agents_model)[::-1]
    members = [_cause_member(folder, table) for table in tables]
    unique = list({str(member["name"]): member for member in members}.values())
    rows = PackRows(pa.Table.from_pylist(unique, MEMBER_SCHEMA), plain=cause_columns(tables))
    period = series_period(releases[0].window_start_s, task.window_s)
    Compaction(folder).add(CAUSES_FOLDER, task.series, period, rows)


def write_suppressed(folder: Path, windows: Sequence[SuppressedWindow]) -> None:
    """Write windows of one series and period that ended without a release."""
    records = [
        {
            "series": one.series,
            "cohort": one.cohort,
            "window_start": utc(one.window_start_s),
            "window_s": one.window_s,
            "version": one.version,
            "reason": one.reason,
            "n_hosts": one.hosts,
            "n_min": one.n_min,
            "settled_at": utc(int(one.settled_s)),
        }
        for one in windows
    ]
    members = [
        _member(
            suppressed_path(folder, one.series, one.cohort, utc(one.window_start_s), one.version),
            one.cohort,
            utc(one.window_start_s),
        )
        | {"window_s": one.window_s, "n_hosts": one.hosts, "settled_at": utc(int(one.settled_s))}
        for one in windows
    ]
    rows = PackRows(
        pa.Table.from_pylist(members, MEMBER_SCHEMA),
        plain=pa.Table.from_pylist(records, SUPPRESSED_SCHEMA),
    )
    period = series_period(windows[0].window_start_s, windows[0].window_s)
    Compaction(folder).add(SUPPRESSED_FOLDER, windows[0].series, period, rows)


def _member(path: Path, cohort: int, start: object) -> dict[str, object]:
    return {"name": path.name, "cohort": cohort, "window_start": start}


def _cause_member(folder: Path, table: CauseTable) -> dict[str, object]:
    start = utc(table.window_start_s)
    path = cause_path(folder, table.series, table.cohort, start)
    return _member(path, table.cohort, start) | {"window_s": table.window_s, "n_hosts": table.n}


class _Block:
    """What the cells of many windows follow from, window by window, handed out cell by cell."""

    def __init__(self, task: Task, catalogue: Catalogue, windows: int) -> None:
        """Make room.

        windows     how many there will be
        """
        self._sections = [(catalogue.section(spec.name), spec) for spec in task.sections]
        places = [named_cells(section) for section, _ in self._sections]
        self._ends = np.cumsum([len(named) for named in places]).tolist()
        self._basis = {
            name: np.empty((windows, self._ends[-1]), kind.to_pandas_dtype())
            for name, kind in BASIS.items()
        }
        self._bias_bound = np.zeros((windows, len(self._sections)))
        self._same: list[dict[str, object]] = []

    @classmethod
    def of(cls, task: Task, catalogue: Catalogue, releases: Sequence[ReleasedWindow]) -> _Block:
        """Estimate every window."""
        block = cls(task, catalogue, len(releases))
        for one in releases:
            found = basis_of(task, catalogue, one.vector, one.n, one.capacity)
            block._add(found, of_window(one))
        return block

    def _add(self, found: Sequence[CellBasis], same: dict[str, object]) -> None:
        at = len(self._same)
        for name, column in self._basis.items():
            column[at] = np.concatenate([getattr(section, name) for section in found])
        self._bias_bound[at] = [section.bias_bound for section in found]
        self._same.append(same)

    def groups(self) -> Iterator[pa.Table]:
        """Give the row groups of the pack's file of cells."""
        first = 0
        for number, end in enumerate(self._ends):
            section, spec = self._sections[number]
            names = [section.cells[place] for place in named_cells(section)]
            units = [released_units(section, spec)[place][0] for place in named_cells(section)]
            for at in range(first, end, GROUP_CELLS):
                cells = slice(at, min(at + GROUP_CELLS, end))
                own = slice(cells.start - first, cells.stop - first)
                texts = {
                    "section": [section.name] * (cells.stop - cells.start),
                    "cell": names[own],
                    "unit": units[own],
                    "kind": [spec.kind.value] * (cells.stop - cells.start),
                }
                yield self._group(cells, texts, self._bias_bound[:, number])
            first = end

    def _group(
        self, cells: slice, texts: dict[str, list[str]], bias_bound: npt.NDArray[np.float64]
    ) -> pa.Table:
        """One row for each of a few cells and every window, cell by cell."""
        windows, count = len(self._same), cells.stop - cells.start
        columns = []
        for field in CELL_SCHEMA:
            if field.name in texts:
                codes = pa.array(np.repeat(np.arange(count, dtype=np.int32), windows))
                column = pa.DictionaryArray.from_arrays(codes, texts[field.name]).cast(field.type)
            elif field.name in self._basis:
                values = self._basis[field.name][:, cells].T.ravel()
                column = pa.array(values, field.type, mask=np.isnan(values))
            elif field.name == "bias_bound":
                column = pa.array(np.tile(bias_bound, count), field.type)
            else:
                same = pa.array([one[field.name] for one in self._same], field.type)
                column = pa.concat_arrays([same] * count)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=CELL_SCHEMA)
