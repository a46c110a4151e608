"""Packs: many windows of one series in a few files, beside the files of single windows.

A pack holds the closed days of an ISO week, or of a year where windows last a day or longer, in a
folder that appears whole under its final name:

    packed/series=S/period=2026-W07/generation=000003/

It is never changed. What comes later makes the next generation, and readers take the highest one. A
single window's file that the pack names among its members is left over and counts no more, so each
window is seen once at every moment.

Rows are sorted by cohort, section, cell and time. A row group holds a few cells of one section, so
that a question about one cell reads little; and what all of them share (hosts, the whole of the
shares, moments) repeats itself word for word, which zstd makes nothing of as long as a column's
part of a row group is one page. Noise does not compress: what is left are the bits that it has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from transport.files.own_names import own_entries

from .release_files import BASIS, MEANINGS, make_public
from .window_files import (
    COARSE,
    PACKED,
    Single,
    all_singles,
    day_of,
    named_moment,
    need_once,
    periods_of,
    series_folders,
    series_of,
    start_of,
)

CELLS: Final = "cells.parquet"
"""What the numbers follow from; packs of releases that came with it."""
PLAIN: Final = "plain.parquet"
"""Rows as the files of single windows have them: suppressed windows, causes, older releases."""
MEMBERS: Final = "members.parquet"
"""One row a window: the name of its file, and how it ended."""

DAY_S: Final = 86_400
MEMBER_SCHEMA: Final = pa.schema(
    {
        "name": pa.string(),
        "cohort": pa.int32(),
        "window_start": pa.timestamp("us"),
        "window_s": pa.int32(),
        "n_hosts": pa.int32(),
        "settled_at": pa.timestamp("us"),
        "n_bound": pa.int32(),
    }
)


@dataclass(frozen=True)
class Pack:
    path: Path
    series: str
    period: str
    generation: int

    @cached_property
    def members(self) -> frozenset[str]:
        return _names(self.path / MEMBERS)

    @property
    def is_coarse(self) -> bool:
        """Whether its counts are on the grid; those of packs of before are exact."""
        return "n_bound" in _columns(self.path / MEMBERS)

    @property
    def days(self) -> tuple[date, date]:
        return days_of(self.period)

    def covers(self, day: date) -> bool:
        first, last = self.days
        return first <= day <= last


@dataclass(frozen=True)
class Listing:
    """What readers of a folder read: each window is in one of these.

    coarse      no file of before counts were coarse is left
    """

    singles: tuple[Single, ...]
    packs: tuple[Pack, ...]
    coarse: bool = False

    def files(self, name: str, *, exact: bool | None = None) -> list[Path]:
        """Give these files of the packs; exact: of packs of before counts were coarse, or not."""
        chosen = (pack for pack in self.packs if exact is None or pack.is_coarse != exact)
        return [pack.path / name for pack in chosen if (pack.path / name).exists()]

    def newest(self, before: datetime) -> dict[str, datetime]:
        """Give when the newest window of each series starts, before a moment."""
        end = named_moment(before)
        # In order: the last of a series stays.
        found = {one.series: one.path.name for one in self.singles if one.path.name < end}
        seen = set[str]()
        for pack in sorted(self.packs, key=lambda pack: pack.days, reverse=True):
            if pack.series not in seen and (held := [n for n in pack.members if n < end]):
                seen.add(pack.series)
                found[pack.series] = max(*held, found.get(pack.series, ""))
        return {series: start_of(name) for series, name in found.items()}

    def between(self, series: str, first: datetime, end: datetime) -> Listing:
        """Give what may hold windows of a series that start in [first, end)."""
        least, most = named_moment(first), named_moment(end)
        singles = (one for one in self.singles if one.series == series)
        packs = (pack for pack in self.packs if pack.series == series)
        return Listing(
            tuple(single for single in singles if least <= single.path.name < most),
            tuple(p for p in packs if p.days[0] <= end.date() and first.date() <= p.days[1]),
            self.coarse,
        )


def list_folder(root: Path) -> Listing:
    """List a folder of releases, causes or suppressed windows; none has nothing.

    Raises      FileNotFoundError where a compaction went on meanwhile: list it again; WindowTwice
    """
    # The singles first: one that is packed after this is in both, and the pack's members say so.
    singles = list(all_singles(root))
    packs = {(pack.series, pack.period): pack for pack in all_packs(root)}
    kept = [
        single
        for single in singles
        if not any(
            single.path.name in packs[single.series, period].members
            for period in periods_of(single.day)
            if (single.series, period) in packs
        )
    ]
    # A Leader of before may have come back, and packed.
    coarse = (root / COARSE).exists() and all(pack.is_coarse for pack in packs.values())
    listing = Listing(tuple(kept), tuple(packs.values()), coarse)
    need_once([one.path for one in kept] + listing.files(CELLS) + listing.files(PLAIN))
    return listing


def mark_new(root: Path) -> None:
    """Say of a folder without windows that no file of before counts were coarse is in it."""
    if not any(root.glob("series=*")) and not (root / PACKED).exists():
        (root / COARSE).touch()
        make_public(root / COARSE)


def windows_by_hour(root: Path) -> Counter[tuple[str, datetime]]:
    """Count the windows of a folder, in packs or not, by series and the hour that they begin in."""
    listing = list_folder(root)
    counts = Counter(
        (single.series, single.window_start.replace(minute=0, second=0))
        for single in listing.singles
    )
    for pack in listing.packs:
        for hour, windows in _hours(pack.path / MEMBERS).items():
            counts[pack.series, hour] += windows
    return counts


def active_pack(root: Path, series: str, period: str) -> Pack | None:
    found = list(_generations(period_folder(root, series, period), series, period))
    return found[-1] if found else None


def is_packed(root: Path, single: Path) -> bool:
    """Whether a pack stands for the file of a window."""
    series, day = series_of(single), day_of(single)
    packs = (active_pack(root, series, period) for period in periods_of(day))
    return any(pack is not None and single.name in pack.members for pack in packs)


def all_packs(root: Path, *, superseded: bool = False) -> Iterator[Pack]:
    """Give the packs that count, by series and period; or those that a later one stands for."""
    for folder, series in series_folders(root / PACKED):
        for generations, period in own_entries(folder, _period, folders=True):
            found = list(_generations(generations, series, period))
            yield from found[:-1] if superseded else found[-1:]


def period_of(day: date, window_s: int | None) -> str:
    """Name the period whose pack takes a window: a week, or a year where it lasts a day."""
    week, year = periods_of(day)
    return year if window_s is not None and window_s >= DAY_S else week


def days_of(period: str) -> tuple[date, date]:
    year, _, week = period.partition("-W")
    if not week:
        return date(int(year), 1, 1), date(int(year), 12, 31)
    monday = date.fromisocalendar(int(year), int(week), 1)
    return monday, monday + timedelta(days=6)


def period_folder(root: Path, series: str, period: str) -> Path:
    return root / PACKED / f"series={quote(series, safe='')}" / f"period={period}"


def _generations(folder: Path, series: str, period: str) -> Iterator[Pack]:
    """Give the packs of a period, oldest first."""
    for path, number in own_entries(folder, _generation, folders=True):
        yield Pack(path, series, period, number)


def _generation(name: str) -> int | None:
    number = name.removeprefix("generation=")
    return int(number) if name != number and re.fullmatch(r"\d{6,}", number, re.ASCII) else None


def _period(name: str) -> str | None:
    period = name.removeprefix("period=")
    if name == period or not re.fullmatch(r"\d{4}(-W\d\d)?", period, re.ASCII):
        return None
    try:
        days_of(period)
    except ValueError:  # a week that its year has not
        return None
    return period


@lru_cache(maxsize=1024)
def _columns(path: Path) -> frozenset[str]:
    return frozenset(pq.read_schema(path).names)


@lru_cache(maxsize=64)
def _names(path: Path) -> frozenset[str]:
    """Read a pack's members; a pack never changes."""
    return frozenset(pq.read_table(path, columns=["name"])["name"].to_pylist())


@lru_cache(maxsize=1024)
def _hours(path: Path) -> dict[datetime, int]:
    """Count a pack's members by hour; a pack never changes."""
    starts = pq.read_table(path, columns=["window_start"])["window_start"]
    hours = pc.value_counts(pc.floor_temporal(starts, unit="hour"))
    return {row["values"]: row["counts"] for row in hours.to_pylist()}


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
"""Of the file of cells: what `releases.DERIVED` gives the rest of. The series is in the path."""

GROUP_CELLS: Final = 16
"""Of a week of minutes: 160,000 rows in 0.6 MB. With 64 cells a year of the shipped plan is a
quarter smaller, and a question about one cell takes three times as long."""

_KEYS: Final = ("cohort", "section", "cell")
_REPEATING: Final = (
    "cohort", "window_s", "section", "cell", "unit", "kind", "epsilon", "delta", "domain", "scale",
    "n_hosts", "n_bound", "whole_bound", "rejections", "variance", "whole_variance", "covariance",
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
    new = rows if isinstance(rows, pa.Table) else cast_to(pa.table({}), schema)
    new, spans = _in_order(new, keys) if new.num_rows else (new, {})

    def take(wanted: Iterable[Key]) -> list[pa.Table]:
        found = [spans.pop(key) for key in wanted if key in spans]
        return [new.slice(a, b - a) for a, b in found]

    with pq.ParquetWriter(target, schema, **_layout(schema)) as writer:
        for path in old:
            for held in _row_groups(path, schema):
                added, both = take(_in_order(held, keys)[1]), held
                if added:
                    both = pa.concat_tables([held, cast_to(pa.concat_tables(added), schema)])
                    both, _ = _in_order(both, keys)
                writer.write_table(both, row_group_size=both.num_rows)
        for cells in _grouped(spans):
            added = cast_to(pa.concat_tables(take(cells)), schema)
            writer.write_table(added, row_group_size=added.num_rows)
        for group in ready:
            writer.write_table(group, row_group_size=group.num_rows)
    make_public(target)


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
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield cast_to(file.read_row_group(number), schema)


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


def cast_to(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if table.schema.equals(schema):
        return table
    known = set(table.schema.names)
    columns = [
        table[f.name].cast(f.type) if f.name in known else pa.nulls(table.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
