"""Writing the files of a pack: rows of old and new windows merged, a few cells at a time.

Rows are sorted by cohort, section, cell and time. A row group holds a few cells of one section, so
that a question about one cell reads little; and what all of them share (hosts, the whole of the
shares, moments) repeats itself word for word, which zstd makes nothing of as long as a column's
part of a row group is one page. Noise does not compress: what is left are the bits that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .public_files import make_public
from .release_files import BASIS, MEANINGS

_DERIVED: Final = (
    "series", "value", "standard_error", "low", "high", "share", "share_low", "share_high",
    "below_noise",
)  # fmt: skip
CELL_SCHEMA: Final = pa.schema(
    [
        *((name, kind) for name, (kind, _) in MEANINGS.items() if name not in _DERIVED),
        *BASIS.items(),
    ]
)
"""Of the file of cells: what `packed_columns` gives the rest of. The series is in the path."""

GROUP_CELLS: Final = 16
"""Of a week of minutes: 160,000 rows in 0.6 MB. With 64 cells a year of the shipped plan is a
quarter smaller, and a question about one cell takes three times as long."""

_KEYS: Final = ("cohort", "section", "cell")
_REPEATING: Final = (
    "cohort", "window_s", "section", "cell", "unit", "kind", "epsilon", "delta", "domain", "scale",
    "n_hosts", "rejections", "variance", "whole_variance", "covariance",
)  # fmt: skip
"""Columns of few values, or of few that belong to a number of hosts: kept as a dictionary."""
_DELTA: Final = ("window_start", "steps")
_WHOLE_ROW_GROUP: Final = 1 << 30
"""Bytes and rows: no page ends before its row group."""

Key = tuple[Any, ...]
Span = tuple[int, int]
"""First row, and the one after the last."""


def write_merged(
    target: Path,
    schema: pa.Schema,
    old: Sequence[Path],
    rows: pa.Table | Iterable[pa.Table] | None,
) -> None:
    """Write the rows of older files and new ones, in order; synced when it returns.

    rows    of the schema, or row groups as they will be; they and the older files have no window
            in common
    """
    keys = [name for name in _KEYS if name in schema.names]
    ready = () if rows is None or isinstance(rows, pa.Table) else rows
    fresh = _Fresh.of(rows if isinstance(rows, pa.Table) else None, keys)
    with pq.ParquetWriter(target, schema, **_layout(schema)) as writer:
        for path in old:
            for group in _row_groups(path, schema):
                merged = _merged(group, fresh.take(_in_order(group, keys)[1]), keys)
                writer.write_table(merged, row_group_size=merged.num_rows)
        for cells in _grouped(fresh.spans):
            added = _cast(pa.concat_tables(fresh.take(cells)), schema)
            writer.write_table(added, row_group_size=added.num_rows)
        for group in ready:
            writer.write_table(group, row_group_size=group.num_rows)
    make_public(target)


@dataclass(slots=True)
class _Fresh:
    """New rows in order, and where those of each key are, until they are taken."""

    rows: pa.Table | None
    spans: dict[Key, Span]

    @classmethod
    def of(cls, rows: pa.Table | None, keys: Sequence[str]) -> Self:
        return cls(None, {}) if rows is None else cls(*_in_order(rows, keys))

    def take(self, keys: Iterable[Key]) -> list[pa.Table]:
        """Give the rows of those keys that have any."""
        spans = [self.spans.pop(key) for key in keys if key in self.spans]
        return [] if self.rows is None else [self.rows.slice(a, b - a) for a, b in spans]


def _layout(schema: pa.Schema) -> dict[str, Any]:
    """How columns are encoded: see the head of this module."""
    repeating = [name for name in _REPEATING if name in schema.names]
    plain = {name: "PLAIN" for name in schema.names if name not in repeating}
    delta = {name: "DELTA_BINARY_PACKED" for name in _DELTA if name in schema.names}
    return {
        "compression": "zstd",
        "use_dictionary": repeating,
        "column_encoding": plain | delta,
        "data_page_size": _WHOLE_ROW_GROUP,
        "max_rows_per_page": _WHOLE_ROW_GROUP,
        "write_statistics": [name for name in (*_KEYS, "window_start") if name in schema.names],
    }


def _row_groups(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a file row group by row group; columns that it lacks are empty."""
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield _cast(file.read_row_group(number), schema)


def _merged(group: pa.Table, fresh: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Put new rows of a row group's cells among its own."""
    if not fresh:
        return group
    both = pa.concat_tables([group, _cast(pa.concat_tables(fresh), group.schema)])
    return _in_order(both, keys)[0]


def _in_order(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, dict[Key, Span]]:
    """Sort rows by their keys in the order of first appearance, then by time.

    Returns     the rows, and where those of each key are
    """
    codes, kinds = _codes(table, keys)
    order = np.lexsort((table["window_start"].to_numpy(), codes))
    codes = codes[order]
    starts = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]]).tolist()
    ends = [*starts[1:], len(codes)]
    return table.take(pa.array(order)), dict(
        zip(kinds, zip(starts, ends, strict=True), strict=True)
    )


def _codes(table: pa.Table, keys: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[Key]]:
    """Number the keys of rows by section, and within it by first appearance."""
    codes = np.zeros(table.num_rows, dtype=np.int64)
    columns: list[list[Any]] = []
    for name in keys:
        column = pc.dictionary_encode(table[name].combine_chunks())
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        columns.append(column.dictionary.to_pylist())
        codes = codes * max(len(columns[-1]), 1) + column.indices.to_numpy()
    found, places = np.unique(codes, return_inverse=True)
    sizes = [max(len(values), 1) for values in columns]
    parts = np.unravel_index(found, sizes)
    kinds = [
        tuple(values[part[i]] for values, part in zip(columns, parts, strict=True))
        for i in range(len(found))
    ]
    return places, kinds


def _grouped(keys: Iterable[Key]) -> Iterator[list[Key]]:
    """Give the keys of each row group: a few cells of one cohort and section."""
    for _, found in groupby(list(keys), key=lambda key: key[:-1]):
        of_section = list(found)
        for at in range(0, len(of_section), GROUP_CELLS):
            yield of_section[at : at + GROUP_CELLS]


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.equals(schema):
        return table
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
