"""The table of `pointillist stragglers`, as wide as a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from transport.printable import printable

from .amounts import span

Row = Mapping[str, Any]
_GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class _Column:
    """One column.

    leaves   the order in which columns leave a terminal that is too narrow; None: never
    """

    head: str
    write: Callable[[Row], str]
    leaves: int | None = None
    to_left: bool = False


def _verdict(row: Row) -> str:
    told = words(row["verdict"])
    return f"{told}: {words(row['cause'])}" if row["verdict"] == "slow" else told


def _share(row: Row) -> str:
    if row["excess_percent"] is None:
        return "-"
    return f"{round(row['excess_percent'], 1) + 0.0:.1f} %"


def _more(row: Row) -> str:
    return "-" if row["excess_ms_per_step"] is None else span(row["excess_ms_per_step"])


_COLUMNS: Final = (
    _Column("rank", lambda row: str(row["rank"])),
    _Column("stage", lambda row: str(row["stage"]), 1),
    _Column("excess", _share),
    _Column("a step", _more, 3),
    _Column("z", lambda row: "-" if row["z"] is None else f"{round(row['z'], 1) + 0.0:.1f}", 0),
    _Column("slow steps", lambda row: f"{row['slow_steps']:,} of {row['compared_steps']:,}", 5),
    _Column("others waited", lambda row: span(row["others_waited_ms_per_step"]), 4),
    _Column("it waited", lambda row: span(row["waited_ms_per_step"]), 2),
    _Column("verdict", _verdict, to_left=True),
)
_CGROUP: Final = _Column("cgroup", lambda row: printable(str(row["name"])), to_left=True)


def table(rows: Sequence[Row], width: int) -> tuple[list[str], list[str]]:
    """Give the lines of a table, and the heads of columns for which `width` had no room."""
    columns = list(_COLUMNS)
    if rows and "name" in rows[0]:
        columns.append(_CGROUP)
    cells = {one: [one.head, *map(one.write, rows)] for one in columns}
    widths = {one: max(map(len, texts)) for one, texts in cells.items()}
    left_out = []
    for one in sorted((c for c in columns if c.leaves is not None), key=lambda c: c.leaves or 0):
        if sum(widths[c] for c in columns) + len(_GAP) * (len(columns) - 1) <= width:
            break
        columns.remove(one)
        left_out.append(one.head)
    lines = [
        _GAP.join(
            cells[one][number].ljust(widths[one])
            if one.to_left
            else cells[one][number].rjust(widths[one])
            for one in columns
        ).rstrip()
        for number in range(len(rows) + 1)
    ]
    return lines, left_out


def words(name: str) -> str:
    """Give a name as it is said."""
    return str(name).replace("_", " ")
