"""The tables of one frame: mostly one drain's; of several drains the sum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from collectors.records.activity import HostTable

_READ: Final = frozenset({"cpu", "cgroup", "block_cgroup", "device", "peer", "pressure"})


class Tables:
    """Collects tables by name until a frame takes them."""

    def __init__(self) -> None:
        self._found: dict[str, list[HostTable]] = {}

    def add(self, table: HostTable) -> None:
        """Take one; a source's first covers no time and says nothing."""
        if table.span_ns > 0 and table.name in _READ:
            self._found.setdefault(table.name, []).append(table)

    def take(self) -> dict[str, HostTable]:
        """Give everything since the last call, one table per name."""
        found, self._found = self._found, {}
        return {
            name: tables[0] if len(tables) == 1 else _sum(tables) for name, tables in found.items()
        }


def _sum(tables: Iterable[HostTable]) -> HostTable:
    """Add tables of one name up; those of another layout than the last are left out."""
    *others, last = tables
    alike = [one for one in others if one.columns == last.columns] + [last]
    rows = {
        name: place for place, name in enumerate(dict.fromkeys(r for t in alike for r in t.rows))
    }
    values = np.zeros((len(rows), len(last.columns)), np.int64)
    for one in alike:
        np.add.at(values, [rows[name] for name in one.rows], one.values)
    begun_ns = alike[0].boottime_ns
    span_ns = sum(one.span_ns for one in alike)
    return HostTable(last.name, tuple(rows), last.columns, values, begun_ns, span_ns)
