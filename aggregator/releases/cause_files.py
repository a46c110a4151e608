"""Root-cause tables as Parquet beside the releases that they are made of, and back.

A table is arithmetic on released cells: it costs no budget, and whoever holds the releases can make
it again, by other rates too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import MAXYEAR, UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aggregator.statistics import causes
from aggregator.statistics.causes import CauseRow, CauseTable, CauseWindow, Trend
from aggregator.statistics.correction import Detector, Reported
from wire.catalogue import MEASURED, NO_CLASSES

from .release_files import release_path, utc


class CausesUnreadable(ValueError):
    """Rows of `causes` that no Leader stored; says what came."""


Record = Mapping[Any, Any]
"""One row, by column."""

FOLDER: Final = "causes"
"""Below the folder of releases."""

CAUSE_MEANINGS: Final[dict[str, tuple[pa.DataType, str]]] = {
    "series": (pa.string(), "task series of the release"),
    "cohort": (pa.int32(), "cohort, a static part of the fleet"),
    "window_start": (pa.timestamp("us"), "first moment of the window, UTC"),
    "window_s": (pa.int32(), "window length, seconds"),
    "section": (pa.string(), "incidents or hardware_faults"),
    "n_hosts": (
        pa.int32(),
        "hosts that measured; accepted hosts, on a grid, where these were not counted",
    ),
    "n_bound": (pa.int32(), "how many hosts n_hosts may be off by, beside its noise"),
    "corrected": (pa.bool_(), "by the measured rates of the agents' detector"),
    "correction": (pa.string(), "by which rates, or why not"),
    "by_chance": (pa.float64(), "rows that would pass two standard errors by chance"),
    "scope": (pa.string(), "what hosts and their intervals are about"),
    "bias_bound": (
        pa.float64(),
        "hosts that reported may lack because hosts left causes out, at most (one-sided 95 %)",
    ),
    "cause": (pa.string(), "cause, as the catalogue names it"),
    "component": (pa.string(), "what of a host it is of"),
    "reported": (pa.float64(), "hosts that reported it, noise included"),
    "hosts": (pa.float64(), "hosts that had it, after correction; may be negative"),
    "standard_error": (
        pa.float64(),
        "of hosts: noise, the detector's chance, the error of its matrix",
    ),
    "low": (pa.float64(), "lower end of the 95 % interval of hosts, false alarms included"),
    "high": (pa.float64(), "upper end of it"),
    "share": (pa.float64(), "hosts as a fraction of n_hosts"),
    "share_low": (pa.float64(), "lower end of its 95 % interval"),
    "share_high": (pa.float64(), "upper end of its 95 % interval"),
    "part": (pa.float64(), "hosts as a fraction of all causes of the table; NULL: noise"),
    "part_low": (pa.float64(), "lower end of its 95 % interval"),
    "part_high": (pa.float64(), "upper end of its 95 % interval"),
    "false_high": (pa.float64(), "how many of hosts could still be false alarms"),
    "below_noise": (pa.bool_(), "hosts is under 2 standard errors"),
    "as_reported": (pa.string(), "why this cause is not corrected although the table is, or NULL"),
    "trend": (pa.string(), "rising, falling, no change beyond noise, or no window before"),
    "change": (pa.float64(), "hosts more than in the window before, at this window's size"),
    "change_low": (pa.float64(), "lower end of its 95 % interval"),
    "change_high": (pa.float64(), "upper end of its 95 % interval"),
}
"""Column -> Arrow type and meaning, in order."""

CAUSE_SCHEMA: Final = pa.schema([(name, kind) for name, (kind, _) in CAUSE_MEANINGS.items()])
_ROW: Final = tuple(field.name for field in fields(CauseRow) if field.name in CAUSE_MEANINGS)
_TABLE: Final = tuple(field.name for field in fields(CauseTable) if field.name in CAUSE_MEANINGS)
RELEASED_COLUMNS: Final = (
    "series, cohort, window_start, window_s, section, cell, value, standard_error, n_hosts, "
    "n_bound, bias_bound"
)
"""What `tables_of` needs of a release, for SQL."""


def cause_path(folder: Path, series: str, cohort: int, start: datetime) -> Path:
    return release_path(folder / FOLDER, series, cohort, start)


def cause_columns(tables: Iterable[CauseTable]) -> pa.Table:
    rows = [
        {name: getattr(table, name) for name in _TABLE}
        | {"window_start": utc(table.window_start_s), "n_hosts": table.n}
        | {name: getattr(row, name) for name in _ROW}
        for table in tables
        for row in table.rows
    ]
    return pa.Table.from_pylist(rows, CAUSE_SCHEMA)


def tables_read(records: Iterable[Record]) -> list[CauseTable]:
    """Give the tables that rows of `causes` hold, newest first.

    Columns that an older store did not write are taken for empty.
    Raises      CausesUnreadable
    """
    try:
        records = [dict.fromkeys(CAUSE_MEANINGS) | dict(record) for record in records]
        return [_table(rows) for rows in _grouped(records)][::-1]
    except (TypeError, ValueError, OverflowError) as error:
        raise CausesUnreadable(f"expected root causes as a Leader stores them: {error}") from error


def _table(rows: Sequence[Record]) -> CauseTable:
    first = rows[0]
    made = [CauseRow(**{name: _read(name, row[name]) for name in _ROW}) for row in rows]
    corrected = bool(first["corrected"])
    return CauseTable(
        first["series"], first["cohort"], _seconds(first["window_start"]), first["window_s"],
        first["section"], first["n_hosts"], corrected, first["correction"],
        causes.judged(made, corrected=corrected), first["by_chance"],
        _read("scope", first["scope"]) or "", _read("bias_bound", first["bias_bound"]),
        first["n_bound"] or 0,
    )  # fmt: skip


def tables_of(
    released: Iterable[Record], detector: Detector | None, agents_model: str | None
) -> list[CauseTable]:
    """Make the tables of released cells, newest first; other sections are left out.

    released    rows of `releases`, the columns of `RELEASED_COLUMNS` at least
    """
    made = []
    ended: dict[tuple[str, int, str, int, int], CauseWindow] = {}
    for one in _windows(released):
        same = one.series, one.cohort, one.section, one.window_s
        before = ended.get((*same, one.window_start_s))
        if before is not None and before.causes != one.causes:
            before = None  # the catalogue gained a cause in between
        made.append(causes.cause_table(one, before, detector, agents_model))
        ended[*same, one.window_start_s + one.window_s] = one
    return made[::-1]


def _windows(released: Iterable[Record]) -> Iterator[CauseWindow]:
    for found in _grouped(row for row in released if row["section"] in causes.CAUSE_SECTIONS):
        rows = [row for row in found if row["cell"] not in NO_CLASSES]
        # A later catalogue's causes come last.
        rows.sort(key=lambda row: (_PLACES.get(row["cell"], len(_PLACES)), row["cell"]))
        first = rows[0]
        yield CauseWindow(
            first["series"], first["cohort"], _seconds(first["window_start"]), first["window_s"],
            first["section"], tuple(row["cell"] for row in rows),
            reported_of(found, rows),
            _read("bias_bound", first.get("bias_bound")),
        )  # fmt: skip


def reported_of(found: Iterable[Record], rows: Sequence[Record]) -> Reported:
    """Give what a section's causes are shares of, and their sums; `found` has all its cells."""
    value, error = (
        np.array([row[name] for row in rows], dtype=np.float64)
        for name in ("value", "standard_error")
    )
    for row in found:
        if row["cell"] == MEASURED:  # where they are noise, so are the shares: none of all hosts
            measured = max(row["value"], row["standard_error"], 1.0)
            return Reported(measured, value, error, row["standard_error"])
    hosts = max(rows[0]["n_hosts"], 1)  # the grid rounds a handful to none
    return Reported(hosts, value, error, 0.0, int(rows[0].get("n_bound") or 0))


def _grouped(records: Iterable[Record]) -> list[list[Record]]:
    """Group the rows of each window, section and cohort, windows in order of time."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        key = record["window_start"], record["series"], record["cohort"], record["section"]
        groups.setdefault(key, []).append(record)
    return [groups[key] for key in sorted(groups)]


_PLACES: Final = {cause: place for place, cause in enumerate(causes.COMPONENTS)}


def _seconds(when: datetime) -> int:
    if when.year > MAXYEAR:  # of pandas, whose years go further
        raise ValueError(f"a window of the year {when.year}")
    return int(when.replace(tzinfo=UTC).timestamp())


_MAY_LACK: Final = frozenset(
    {"part", "part_low", "part_high", "as_reported", "change", "change_low", "change_high"}
    | {"scope", "bias_bound"}
)


def _read(name: str, value: Any) -> Any:
    """Give a column's value its type again: NULL may have come as NaN; raises ValueError."""
    if name == "trend":
        return Trend(value)
    kind = CAUSE_MEANINGS[name][0]
    if pa.types.is_floating(kind):
        value = None if value is None or np.isnan(value) else float(value)
    elif pa.types.is_string(kind):
        value = value if isinstance(value, str) else None
    elif pa.types.is_boolean(kind):
        value = bool(value)
    if value is None and name not in _MAY_LACK:
        raise ValueError(f"a row without {name}")
    return value
