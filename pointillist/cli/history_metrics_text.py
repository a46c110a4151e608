"""The metrics of `agent history` in lines, and how many lines of anything are shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from edge_agent.local.quantity import number, read_as
from pointillist.table import Column, cells_of, table_lines, terminal_columns

MOST_LINES: Final = 40
"""Of a kind, where neither --all nor --name asks for more: two screens."""

_Place = tuple[str, str, str, str]
_Sums = tuple[_Place, list[float]]
"""Source, name, key and unit; count, least, sum, most and last value."""


def metric_lines(rows: Iterable[Mapping[str, Any]], most: int | None = None) -> list[str]:
    """Sum up each metric in a line, those of the whole host before those of its parts.

    most    lines; where there are more, the parts of a metric share one, and the rest is counted
    """
    found: dict[_Place, list[float]] = {}
    for row in rows:
        _add(found, (row["source"], row["name"], row["key"], row["unit"]), row["value"])
    if most is not None and len(found) > most:
        found = _parts_together(found)
    if not found:
        return []
    ordered = sorted(found.items(), key=lambda item: (bool(item[0][2]), item[0]))
    shown = ordered[:most]
    lines = table_lines(_METRICS, cells_of(_METRICS, shown), terminal_columns())
    return [*lines, *left_out(len(ordered) - len(shown), "more")]


def _add(found: dict[_Place, list[float]], place: _Place, value: float) -> None:
    sums = found.setdefault(place, [0, value, 0, value, value])
    sums[:] = [sums[0] + 1, min(sums[1], value), sums[2] + value, max(sums[3], value), value]


def _parts_together(found: Mapping[_Place, list[float]]) -> dict[_Place, list[float]]:
    """Put all keys of a metric on one line; the last value is that of one of them: left out."""
    together: dict[_Place, list[float]] = {}
    keys: dict[_Place, int] = {}
    for (source, name, key, unit), (count, least, total, largest, last) in found.items():
        place = (source, name, "*" if key else "", unit)
        keys[place] = keys.get(place, 0) + 1
        sums = together.setdefault(place, [0, least, 0, largest, last])
        sums[:] = [sums[0] + count, min(sums[1], least), sums[2] + total,
                   max(sums[3], largest), last]  # fmt: skip
    return {
        (source, name, f"{keys[source, name, key, unit]} keys" if key else "", unit): sums
        for (source, name, key, unit), sums in together.items()
    }


def newest(rows: Iterable[Any], most: int | None) -> tuple[list[Any], int]:
    """Give the last so many rows, and how many came before them."""
    kept: deque[Any] = deque(maxlen=most)
    count = 0
    for row in rows:
        kept.append(row)
        count += 1
    return list(kept), count - len(kept)


def left_out(count: int, what: str) -> list[str]:
    """Say how much is not shown, and how it would be."""
    return [f"and {count:,} {what}: --name PATTERN or --all shows them"] if count else []


def _metric_name(row: _Sums) -> str:
    (source, name, key, _), _sums = row
    return f"{source}/{name}{f'[{key}]' if key else ''}"


def _shown(row: _Sums) -> tuple[float, str]:
    """Give divisor and unit: shares in percent, what a name says the unit of as it says it."""
    unit = row[0][3]
    return read_as(unit) if unit.startswith("millionths") else (1.0, unit)


def _number(row: _Sums, value: float) -> str:
    by, _ = _shown(row)
    return f"{value:.6g}" if by == 1 else number(value / by)


_METRICS: Final = (
    Column("metric", _metric_name, folds=True),
    Column("rows", lambda row: str(int(row[1][0])), right=True, leaves=0),
    Column("least", lambda row: _number(row, row[1][1]), right=True, leaves=1),
    Column("mean", lambda row: _number(row, row[1][2] / row[1][0]), right=True),
    Column("most", lambda row: _number(row, row[1][3]), right=True),
    Column("last", lambda row: _number(row, row[1][4]), right=True),
    Column("unit", lambda row: _shown(row)[1], folds=True),
)
