"""SQL of where the rows of a folder come from: files of single windows, and packs, as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import pyarrow as pa

from .packed_columns import DERIVED
from .packs import CELLS, MEMBER_SCHEMA, MEMBERS, PLAIN, Listing
from .release_files import MEANINGS

Meanings = Mapping[str, tuple[pa.DataType, str]]

_SQL_TYPES: Final = {
    "string": "VARCHAR",
    "int32": "INTEGER",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "timestamp[us]": "TIMESTAMP",
}
_SINGLE: Final = "{'series': VARCHAR, 'date': DATE}"
_PACKED: Final = "{'series': VARCHAR, 'period': VARCHAR, 'generation': VARCHAR}"
"""What the names of the folders say."""
_DAY: Final = "CAST(window_start AS DATE) AS date"


def released(listing: Listing) -> str:
    """Select the columns of releases and `date` of a listing, whatever files they lie in."""
    parts = [rows(listing, MEANINGS)]
    if cells := listing.files(CELLS):
        packed = f"SELECT * FROM {_read(cells, _PACKED)}"
        parts.append(f"SELECT *, {_DAY} FROM ({DERIVED.format(packed=packed)})")
    return _union(parts)


def rows(listing: Listing, meanings: Meanings) -> str:
    """Select these columns and `date` of the files that have them as they are."""
    parts = [f"SELECT {_typed_nulls(meanings)} WHERE false"]
    if singles := [single.path for single in listing.singles]:
        parts.append(f"SELECT * FROM {_read(singles, _SINGLE, by_name=True)}")
    if plain := listing.files(PLAIN):
        parts.append(f"SELECT *, {_DAY} FROM {_read(plain, _PACKED, by_name=True)}")
    # Files of before a column have it empty, also where no file has it.
    return f"SELECT {', '.join([*meanings, 'date'])} FROM ({_union(parts)})"


def ends(listing: Listing) -> str:
    """Select the members of a listing's packs: a row for each window, and its series."""
    names = ", ".join(MEMBER_SCHEMA.names)
    if not listing.packs:
        nulls = ", ".join(
            f"CAST(NULL AS {_SQL_TYPES[str(field.type)]}) AS {field.name}"
            for field in MEMBER_SCHEMA
        )
        return f"SELECT NULL::VARCHAR AS series, {nulls} WHERE false"
    return f"SELECT series, {names} FROM {_read(listing.files(MEMBERS), _PACKED)}"


@dataclass(frozen=True, slots=True)
class Newest:
    """The files that hold the newest window of each series and cohort, and which windows these are.

    condition   on their rows, in SQL
    """

    listing: Listing
    condition: str


def newest(listing: Listing, packed: Iterable[tuple[str, int, datetime]]) -> Newest:
    """Find the newest windows of a listing.

    packed      series, cohort and start of the newest window that packs hold
    """
    latest = {(series, cohort): start for series, cohort, start in packed}
    for single in listing.singles:
        key = single.series, single.cohort
        latest[key] = max(single.window_start, latest.get(key, single.window_start))
    singles = [
        single
        for single in listing.singles
        if latest[single.series, single.cohort] == single.window_start
    ]
    days = {(series, start.date()) for (series, _), start in latest.items()}
    packs = [
        pack
        for pack in listing.packs
        if any(series == pack.series and pack.covers(day) for series, day in days)
    ]
    windows = ", ".join(
        f"({literal(series)}, {cohort}, TIMESTAMP '{start}')"
        for (series, cohort), start in latest.items()
    )
    condition = f"(series, cohort, window_start) IN ({windows})" if windows else "false"
    return Newest(Listing(tuple(singles), tuple(packs)), condition)


def literal(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def escaped(path: str) -> str:
    """A path in which glob's own characters stand for themselves."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def _read(files: Sequence[Path], types: str, *, by_name: bool = False) -> str:
    paths = ", ".join(literal(escaped(str(path))) for path in files)
    options = f"hive_partitioning = true, hive_types = {types}"
    return f"read_parquet([{paths}], {options}, union_by_name = {str(by_name).lower()})"


def _union(parts: Sequence[str]) -> str:
    return " UNION ALL BY NAME ".join(parts)


def _typed_nulls(meanings: Meanings) -> str:
    columns = {name: _SQL_TYPES[str(kind)] for name, (kind, _) in meanings.items()} | {
        "date": "DATE"
    }
    return ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in columns.items())
