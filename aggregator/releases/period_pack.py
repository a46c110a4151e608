"""Write all windows of a series' period at once, as the pack that their files would end in.

For whoever has weeks of windows at hand: a simulation writes its store so. Numbers come from the
same estimate as a Leader's, and the pack is the same but for the order of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aggregator.protocol.released import PublishedWindow, ReleasedWindow, SuppressedWindow
from aggregator.statistics.causes import CAUSE_SECTIONS
from aggregator.statistics.statistics import basis_of, estimate, named_cells, released_units
from wire.catalogue import Catalogue
from wire.task import Task

from . import release_files
from .cause_files import FOLDER as CAUSES_FOLDER
from .cause_files import cause_columns, cause_path, tables_of
from .compaction import Compaction, PackRows
from .packs import CELL_SCHEMA, GROUP_CELLS, MEMBER_SCHEMA, period_of
from .release_files import SUPPRESSED_SCHEMA, release_path, release_rows, suppressed_path, utc


def series_period(window_start_s: int, window_s: int | None) -> str:
    return period_of(utc(window_start_s).date(), window_s)


def write_period(folder: Path, catalogue: Catalogue, windows: Sequence[ReleasedWindow]) -> None:
    """Write the released windows of one task, cohort and period, in order, none of them known yet.

    Raises      ValueError for windows of several tasks or cohorts, OSError
    """
    releases = [one.published(catalogue) for one in windows]
    task = releases[0].task
    if any((one.task, one.cohort) != (task, releases[0].cohort) for one in releases):
        raise ValueError("expected windows of one task and cohort, got several")
    period = series_period(releases[0].window_start_s, task.window_s)
    members = []
    for one in releases:
        path = release_path(folder, task.series, one.cohort, utc(one.window_start_s))
        at, hosts = (one.cohort, utc(one.window_start_s), task.window_s), one.counts.hosts
        members.append(_member(path, *at, hosts.value, utc(one.released_s), hosts.bound))
    groups = _row_groups(task, catalogue, releases)
    rows = PackRows(pa.Table.from_pylist(members, MEMBER_SCHEMA), cells=groups)
    Compaction(folder).add("", task.series, period, rows)


def write_causes(folder: Path, catalogue: Catalogue, windows: Sequence[ReleasedWindow]) -> None:
    """Write the root-cause tables of windows of one period, where their task counts causes."""
    task = windows[0].task
    if not {spec.name for spec in task.sections} & set(CAUSE_SECTIONS):
        return
    records: list[dict[str, object]] = []
    for one in (window.published(catalogue) for window in windows):
        cells = estimate(task, catalogue, one.vector, one.counts)
        records += release_rows(one, cells).to_pylist()
    tables = tables_of(records, None, None)[::-1]
    members = {}
    for table in tables:
        path = cause_path(folder, table.series, table.cohort, utc(table.window_start_s))
        at = table.cohort, utc(table.window_start_s), table.window_s
        members[path.name] = _member(path, *at, table.n, None, table.n_bound)
    unique = pa.Table.from_pylist(list(members.values()), MEMBER_SCHEMA)
    rows = PackRows(unique, plain=cause_columns(tables))
    period = series_period(windows[0].window_start_s, task.window_s)
    Compaction(folder).add(CAUSES_FOLDER, task.series, period, rows)


def write_suppressed(folder: Path, windows: Sequence[SuppressedWindow]) -> None:
    """Write windows of one series and period that ended without a release."""
    records, members = [], []
    for one in windows:
        start, settled = utc(one.window_start_s), utc(int(one.settled_s))
        hosts = one.coarse_hosts()
        path = suppressed_path(folder, one.series, one.cohort, start, one.version)
        members.append(
            _member(path, one.cohort, start, one.window_s, hosts.value, settled, hosts.bound)
        )
        of_task = one.window_s, one.version, one.reason, hosts.value, one.n_min
        record = one.series, one.cohort, start, *of_task, settled, hosts.bound
        records.append(dict(zip(SUPPRESSED_SCHEMA.names, record, strict=True)))
    rows = PackRows(
        pa.Table.from_pylist(members, MEMBER_SCHEMA),
        plain=pa.Table.from_pylist(records, SUPPRESSED_SCHEMA),
    )
    period = series_period(windows[0].window_start_s, windows[0].window_s)
    Compaction(folder).add(release_files.SUPPRESSED_FOLDER, windows[0].series, period, rows)


def _member(path: Path, *values: object) -> dict[str, object]:
    """`values` as `MEMBER_SCHEMA` has them behind the name."""
    return dict(zip(MEMBER_SCHEMA.names, (path.name, *values), strict=True))


def _row_groups(
    task: Task, catalogue: Catalogue, releases: Sequence[PublishedWindow]
) -> Iterator[pa.Table]:
    """Estimate every window, and give the row groups of the pack's file of cells."""
    sections = [(catalogue.section_of(spec), spec) for spec in task.sections]
    ends = np.cumsum([len(named_cells(section)) for section, _ in sections]).tolist()
    basis = {
        name: np.empty((len(releases), ends[-1]), kind.to_pandas_dtype())
        for name, kind in release_files.BASIS.items()
    }
    bias_bound = np.zeros((len(releases), len(sections)))
    for at, one in enumerate(releases):
        found = basis_of(task, catalogue, one.vector, one.counts)
        for name, column in basis.items():
            column[at] = np.concatenate([getattr(section, name) for section in found])
        bias_bound[at] = [section.bias_bound for section in found]
    same = [release_files.of_window(one) for one in releases]
    first = 0
    for number, end in enumerate(ends):
        section, spec = sections[number]
        named, units = named_cells(section).tolist(), released_units(section, spec)
        for at in range(first, end, GROUP_CELLS):
            own = named[at - first : at - first + GROUP_CELLS]
            texts = {
                "section": [section.name] * len(own),
                "cell": [section.released_cells[place] for place in own],
                "unit": [units[place][0] for place in own],
                "kind": [spec.kind.value] * len(own),
            }
            some = {name: column[:, at : at + len(own)] for name, column in basis.items()}
            yield _row_group(texts, some, bias_bound[:, number], same)
        first = end


def _row_group(
    texts: dict[str, list[str]],
    basis: dict[str, npt.NDArray[Any]],
    bias_bound: npt.NDArray[np.float64],
    same: Sequence[dict[str, object]],
) -> pa.Table:
    """One row for each of a few cells and every window, cell by cell."""
    windows, count = len(same), len(texts["cell"])
    columns = []
    for field in CELL_SCHEMA:
        if field.name in texts:
            codes = pa.array(np.repeat(np.arange(count, dtype=np.int32), windows))
            column = pa.DictionaryArray.from_arrays(codes, texts[field.name]).cast(field.type)
        elif field.name in basis:
            values = basis[field.name].T.ravel()
            column = pa.array(values, field.type, mask=np.isnan(values))
        elif field.name == "bias_bound":
            column = pa.array(np.tile(bias_bound, count), field.type)
        else:
            once = pa.array([one[field.name] for one in same], field.type)
            column = pa.concat_arrays([once] * count)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=CELL_SCHEMA)
